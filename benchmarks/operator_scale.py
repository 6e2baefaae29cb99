"""One operator with 100 jobs of 8 learners, one of 1,000, one of 10,000 that fail: time, requests, memory.

Then jobs over 20 other clusters, two of which are away.

Needs etcd and kube-apiserver as processes of this machine (`make kind-up` builds them), and nothing else: there are no
nodes and no controllers, so nothing competes with the operator but the API server itself. The operator is a process of
its own. Pods are made for the last case only: sets are said to be ready once they are there, and a page answers for the
syncers.

    python benchmarks/operator_scale.py

Times are given as multiples of the time of a single job of 8 learners, so that those of a busy machine are comparable.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from report import write_report

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where testbed is, which is not installed
from operator_clusters import over_clusters
from operator_world import Shape, World, syncers, wait
from testbed.api_server.server import ApiServer, api_server, job_api_server, why_there_is_none
from testbed.operator_process import OperatorProcess

SMALL = Shape(regions=2, pools=1, learners=4)
LARGE = Shape(regions=2, pools=5, learners=100)
HUGE = Shape(regions=2, pools=5, learners=1000)
"""All of its pods fail, and are looked at."""
LIMIT_MEBIBYTES = 512
"""The chart's default limit of the operator's memory."""
JOBS = 100
TRIALS = 5
"""Of one job alone; the median counts, as the first is slower."""
ROUNDS = 10
"""Reconciles of each job in the steady state that are counted."""
READS, WRITES = ("get", "list"), ("create", "update", "patch", "delete")
SETTING = "etcd and kube-apiserver on this machine, without nodes and controllers; sets said to be ready"
POLL_SECONDS = 5.0
"""The operator's own default between two looks at a job's syncer."""

Found = tuple[dict[str, float], dict[str, Any], dict[str, str]]
"""Ratios, figures, and what the ratios are against."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of what an operator has done so far."""

    reconciles: float
    reconcile_seconds: float
    reads: float
    writes: float
    cpu_seconds: float
    memory_mebibytes: float

    @classmethod
    def of(cls, operator: OperatorProcess) -> "Counters":
        """The current values."""
        process = psutil.Process(operator.pid)
        times = process.cpu_times()
        return cls(
            reconciles=operator.reconciles,
            reconcile_seconds=operator.metric("reconcile_seconds_sum"),
            reads=sum(operator.metric("api_requests_total", f'verb="{verb}"', without="leases") for verb in READS),
            writes=operator.writes,
            cpu_seconds=times.user + times.system,
            memory_mebibytes=process.memory_info().rss / 2**20,
        )


@dataclass(slots=True)
class Case:
    """An operator that reconciles one namespace."""

    world: World
    operator: OperatorProcess
    shape: Shape
    empty: Counters
    """Before it had a job."""

    def create(self, names: list[str]) -> float:
        """Seconds from the first apply until the server has every child and the first status of these jobs."""
        wanted = self.world.planned() + len(names)
        started = time.monotonic()
        self.world.apply(names, self.shape)
        wait(f"{wanted} jobs", lambda: self.world.planned() >= wanted, poll_seconds=0.05)
        return time.monotonic() - started

    def settle(self, jobs: int) -> None:
        """Wait until every job trains and the operator has nothing more to write."""
        self.world.say_all_is_well()
        wait("every job trains", lambda: self.operator.metric("jobs", 'phase="Training"') == jobs)
        written = -1.0
        while written != self.operator.writes:
            written = self.operator.writes
            self.rounds(jobs, 2)

    def rounds(self, jobs: int, rounds: int) -> None:
        """Wait until it has reconciled the jobs this many times more."""
        wanted = self.operator.reconciles + rounds * jobs
        wait(f"{rounds} rounds", lambda: self.operator.reconciles >= wanted)

    def steady(self, jobs: int) -> dict[str, Any]:
        """Figures of one reconcile in the steady state."""
        self.settle(jobs)
        before = Counters.of(self.operator)
        started = time.monotonic()
        self.rounds(jobs, ROUNDS)
        seconds, after = time.monotonic() - started, Counters.of(self.operator)
        reconciles = after.reconciles - before.reconciles
        return {
            "jobs": jobs,
            "learners_per_job": self.shape.all_learners,
            "reconciles": int(reconciles),
            "window_seconds": seconds,
            "reads": int(after.reads - before.reads),
            "writes": int(after.writes - before.writes),
            "milliseconds_per_reconcile": 1000 * (after.reconcile_seconds - before.reconcile_seconds) / reconciles,
            "cpu_cores": (after.cpu_seconds - before.cpu_seconds) / seconds,
            "memory_mebibytes": after.memory_mebibytes,
        }


def look(huge: Case) -> dict[str, Any]:
    """Figures of reconciles of a job whose pods all fail."""
    huge.create(["huge"])
    pods = huge.world.make_failing_pods()
    wait("the pods' failures are reported", lambda: "crash-looping" in huge.world.message_of("huge", "Degraded"))
    huge.rounds(1, ROUNDS)
    status = Path(f"/proc/{huge.operator.pid}/status").read_text(encoding="ascii")
    (peak,) = (int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    return {"pods": pods, "peak_memory_mebibytes": peak}


@contextmanager
def case(server: ApiServer, namespace: str, shape: Shape) -> Iterator[Case]:
    """A fresh operator with an empty namespace."""
    world = World(server, namespace)
    world.make_namespace()
    flags = (f"--operator-namespace={namespace}", f"--namespaces={namespace}", f"--poll-seconds={POLL_SECONDS:g}")
    program = (str(Path(__file__).with_name("operator_with_page.py")),)
    with tempfile.TemporaryDirectory() as folder, syncers(shape):
        log = Path(folder) / "operator.log"
        with OperatorProcess(server.kubeconfig, log, *flags, program=program) as operator:
            wait("the operator works", lambda: operator.works)
            yield Case(world, operator, shape, Counters.of(operator))


def at_home(jobs: int) -> Found:
    """One job, many, a large one and a huge one, all of whose regions are at home."""
    with job_api_server() as server:
        with case(server, "one", SMALL) as one:
            alone = statistics.median(one.create([f"alone-{trial}"]) for trial in range(TRIALS))
            one_steady = one.steady(TRIALS)
            children_of_one = one.world.children() // TRIALS
        with case(server, "many", SMALL) as many:
            together = many.create([f"job-{index}" for index in range(jobs)])
            many_steady = many.steady(jobs)
        with case(server, "large", LARGE) as large:
            of_large = large.create(["large"])
            large_steady = large.steady(1)
            children_of_large = large.world.children()
        with case(server, "huge", HUGE) as huge:
            looked = look(huge)
    empty = many.empty.memory_mebibytes
    reconcile = f"reconciles of {jobs} jobs in the steady state"
    ratios = {
        "children_of_many_jobs": together / jobs / alone,
        "children_of_a_large_job": of_large / alone,
        "reads_per_reconcile": many_steady["reads"] / many_steady["reconciles"],
        "writes_per_reconcile": many_steady["writes"] / many_steady["reconciles"],
        "reconcile_of_a_large_job": large_steady["milliseconds_per_reconcile"]
        / one_steady["milliseconds_per_reconcile"],
        "memory_of_many_jobs": many_steady["memory_mebibytes"] / empty,
        "memory_of_a_large_job": large_steady["memory_mebibytes"] / empty,
        "peak_memory_of_looks": looked["peak_memory_mebibytes"] / LIMIT_MEBIBYTES,
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
    against = {
        "children_of_many_jobs": f"time until all children of one job of {SMALL.all_learners} learners, alone;"
        f" here that of {jobs} jobs applied at once, for each job",
        "children_of_a_large_job": f"the same; here of one job of {LARGE.all_learners} learners in 10 pools",
        "reads_per_reconcile": f"{reconcile}; watches and the Lease not counted. They are lists of all metadata"
        " every 30 s, by which a deaf watch is found: a reconcile itself makes none",
        "writes_per_reconcile": reconcile,
        "reconcile_of_a_large_job": f"time of a reconcile of a job of {SMALL.all_learners} learners;"
        " both with the question to the syncer and its answer",
        "memory_of_many_jobs": "resident memory of the operator without jobs",
        "memory_of_a_large_job": "the same",
        "peak_memory_of_looks": f"the chart's limit, {LIMIT_MEBIBYTES} MiB; here of one job of"
        f" {HUGE.all_learners} learners whose pods all crash",
    }
    return ratios, figures, against


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the report there")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"jobs of {SMALL.all_learners} learners ({JOBS})")
    parser.add_argument("--only", choices=("home", "clusters"), help="only these cases (all)")
    arguments = parser.parse_args()
    if reason := why_there_is_none():
        raise SystemExit(reason)
    ratios: dict[str, float] = {}
    figures: dict[str, Any] = {"setting": SETTING}
    against: dict[str, str] = {}
    for case_of in ("home", "clusters") if arguments.only is None else (arguments.only,):
        found = at_home(arguments.jobs) if case_of == "home" else elsewhere()
        ratios |= found[0]
        figures |= found[1]
        against |= found[2]
    write_report(arguments.json, benchmark="operator-scale", ratios=ratios, figures=figures, against=against)


def elsewhere() -> Found:
    """Jobs over other clusters."""
    with job_api_server() as home, api_server() as server:
        return over_clusters(home, server)


if __name__ == "__main__":
    main()
