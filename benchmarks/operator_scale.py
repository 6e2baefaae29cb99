"""One operator with 100 jobs of 8 learners, one of 1,000, one of 10,000 that fail: time, requests, memory.

Then jobs over 20 other clusters, two of which are away.

Needs etcd and kube-apiserver as processes of this machine (`make kind-up` builds them), and nothing else: there are no
nodes and no controllers, so nothing competes with the operator but the API server itself. The operator is a process of
its own. Pods are made for the last case only: sets are said to be ready once they are there, and a page answers for the
syncers.

    python benchmarks/operator_scale.py

Times are given as multiples of the time of a single job of 8 learners, so that those of a busy machine are comparable.
"""

import statistics
from pathlib import Path
from typing import Any

from support.operator.case import POLL_SECONDS, ROUNDS, Case, case
from support.operator.clusters import over_clusters
from support.operator.world import Shape, wait
from support.report import Ratio, Ratios, command, write_report
from testbed.api_server.server import api_server, job_api_server, why_there_is_none

SMALL = Shape(regions=2, pools=1, learners=4)
LARGE = Shape(regions=2, pools=5, learners=100)
HUGE = Shape(regions=2, pools=5, learners=1000)
"""All of its pods fail, and are looked at."""
LIMIT_MEBIBYTES = 512
"""The chart's default limit of the operator's memory."""
JOBS = 100
TRIALS = 5
"""Of one job alone; the median counts, as the first is slower."""
SETTING = "etcd and kube-apiserver on this machine, without nodes and controllers; sets said to be ready"


def look(huge: Case) -> dict[str, Any]:
    """Figures of reconciles of a job whose pods all fail."""
    huge.create(["huge"])
    pods = huge.world.make_failing_pods()
    wait("the pods' failures are reported", lambda: "crash-looping" in huge.world.message_of("huge", "Degraded"))
    huge.rounds(1, ROUNDS)
    status = Path(f"/proc/{huge.operator.pid}/status").read_text(encoding="ascii")
    (peak,) = (int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    return {"pods": pods, "peak_memory_mebibytes": peak}


def at_home(jobs: int) -> tuple[Ratios, dict[str, Any]]:
    """One job, many, a large one and a huge one, all of whose regions are at home."""
    with job_api_server() as server:
        with case(server, "one", SMALL) as one:
            alone = statistics.median(one.create([f"alone-{trial}"]) for trial in range(TRIALS))
            one_steady = one.steady(TRIALS)
            children_of_one = one.world.children() // TRIALS
        with case(server, "many", SMALL) as many:
            empty = many.memory_mebibytes
            together = many.create([f"job-{index}" for index in range(jobs)])
            many_steady = many.steady(jobs)
        with case(server, "large", LARGE) as large:
            of_large = large.create(["large"])
            large_steady = large.steady(1)
            children_of_large = large.world.children()
        with case(server, "huge", HUGE) as huge:
            looked = look(huge)
    reconcile = f"reconciles of {jobs} jobs in the steady state"
    children = f"time until all children of one job of {SMALL.all_learners} learners, alone; here"
    reads = (
        f"{reconcile}; watches and the Lease not counted. They are lists of all metadata every 30 s, by which a deaf"
        " watch is found: a reconcile itself makes none"
    )
    one_reconcile = (
        f"time of a reconcile of a job of {SMALL.all_learners} learners; both with the question to the syncer and its"
        " answer"
    )
    limit = f"the chart's limit, {LIMIT_MEBIBYTES} MiB; a job of {HUGE.all_learners} learners whose pods all crash"
    memory = "resident memory of the operator without jobs"
    milliseconds = [steady["milliseconds_per_reconcile"] for steady in (large_steady, one_steady)]
    ratios = {
        "children_of_many_jobs": Ratio(
            together / jobs / alone, f"{children} that of {jobs} jobs applied at once, for each job"
        ),
        "children_of_a_large_job": Ratio(
            of_large / alone, f"{children} of one job of {LARGE.all_learners} learners in 10 pools"
        ),
        "reads_per_reconcile": Ratio(many_steady["reads"] / many_steady["reconciles"], reads),
        "writes_per_reconcile": Ratio(many_steady["writes"] / many_steady["reconciles"], reconcile),
        "reconcile_of_a_large_job": Ratio(milliseconds[0] / milliseconds[1], one_reconcile),
        "memory_of_many_jobs": Ratio(many_steady["memory_mebibytes"] / empty, memory),
        "memory_of_a_large_job": Ratio(large_steady["memory_mebibytes"] / empty, memory),
        "peak_memory_of_looks": Ratio(looked["peak_memory_mebibytes"] / LIMIT_MEBIBYTES, limit),
    }
    figures = {
        "children_per_job": {"small": children_of_one, "large": children_of_large},
        "seconds_until_all_children": {"one job alone": alone, f"{jobs} jobs": together, "large job": of_large},
        "memory_mebibytes_without_jobs": empty,
        "memory_kibibytes_per_job": 1024 * (many_steady["memory_mebibytes"] - empty) / jobs,
        "seconds_between_looks_at_a_job": POLL_SECONDS,
        "steady": [one_steady, many_steady, large_steady],
        "looks_at_failing_pods": looked,
    }
    return ratios, figures


def main() -> None:
    """Measure and report."""
    parser = command(__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"jobs of {SMALL.all_learners} learners ({JOBS})")
    parser.add_argument("--only", choices=("home", "clusters"), help="only these cases (all)")
    arguments = parser.parse_args()
    if reason := why_there_is_none():
        raise SystemExit(reason)
    ratios: Ratios = {}
    figures: dict[str, Any] = {"setting": SETTING}
    if arguments.only != "clusters":
        found = at_home(arguments.jobs)
        ratios, figures = ratios | found[0], figures | found[1]
    if arguments.only != "home":
        with job_api_server() as home, api_server() as server:
            found = over_clusters(home, server)
        ratios, figures = ratios | found[0], figures | found[1]
    ratios = {name: ratio._replace(less_is_better=True) for name, ratio in ratios.items()}
    write_report(arguments.json, "operator-scale", ratios, figures)


if __name__ == "__main__":
    main()
