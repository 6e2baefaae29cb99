"""``diloco chaos`` against a real API server: only the job's own pods are deleted, whatever labels others bear."""

import pytest

from diloco.cli.chaos.cluster import ROLE
from diloco.cli.main import execute
from diloco.local.chaos.spec import ChaosError, Fault, FaultKind
from diloco_operator import labels, names
from diloco_operator.api_server.kinds import JOB, POD
from diloco_operator.manifests.placement.holds import GATE
from diloco_operator.names import PoolKey
from testbed.api_server.server import ApiServer
from tests.support.job_in_namespace import LEARNER, POOL, Namespace, with_jobs

pytestmark = pytest.mark.processes


def test_only_pods_that_the_job_owns_are_deleted(job_server: ApiServer) -> None:
    made, pod = with_jobs(job_server, "owned")
    before = made.pods()
    place = made.place("mine")
    everybody = place.learner_ids
    hit, refused = place.hit(Fault(FaultKind.KILL, "*", (*everybody, "syncer")))
    assert hit == (LEARNER,)
    assert "has no pod" in refused
    assert made.pods() == before - {pod}
    # Nothing is left to hit, and nothing else is hit instead.
    assert place.hit(Fault(FaultKind.EVICT, LEARNER, (LEARNER,))) == ((), f"{LEARNER}: has no pod")
    assert made.pods() == before - {pod}


def test_a_syncers_pod_is_found_by_its_deployment_unless_it_was_evicted(job_server: ApiServer) -> None:
    made = Namespace(job_server, "evicted")
    replica_set = made.replica_set("mine-syncer", made.job("mine"))
    # Listed by name: one before the pod that runs, one after it.
    for name in ("mine-syncer-1-a", "mine-syncer-1-b", "mine-syncer-1-c"):
        made.pod(name, labels.of_job("mine", labels.SYNCER), replica_set)
    made.pod("another", labels.of_job("mine", labels.SYNCER), None)
    for name in ("mine-syncer-1-a", "mine-syncer-1-c"):
        job_server.set_status(POD.path(made.name, name), {"phase": "Failed", "reason": "Evicted"})
    place = made.place("mine")
    kill = Fault(FaultKind.KILL, "syncer", ("syncer",))
    assert place.hit(kill) == (("syncer",), "")
    assert made.pods() == {"another", "mine-syncer-1-a", "mine-syncer-1-c"}
    assert place.hit(kill) == ((), "syncer: its pod has ended")


def test_a_pod_without_a_node_is_left_alone_and_the_report_says_why(job_server: ApiServer) -> None:
    made = Namespace(job_server, "waiting")
    pool = {"name": POOL.pool, "learners": 4}
    owner = made.stateful_set("mine", made.job("mine", regions=[{"name": POOL.region, "pools": [pool]}]))
    said = labels.of_pool("mine", POOL)
    made.pod("mine-0", said, owner)
    made.pod("mine-1", said, owner, node="")
    made.pod("mine-2", said, owner, node="", schedulingGates=[{"name": GATE}])
    made.pod("mine-3", said, owner)
    # No kubelet ends it: it stays, as a pod does within its grace period.
    job_server.kubectl("delete", "pod", "mine-3", f"--namespace={made.name}", "--wait=false")
    place = made.place("mine")
    assert place.nodes() == {f"{POOL}/0": "node-a"}
    hit, refused = place.hit(Fault(FaultKind.KILL, str(POOL), place.learner_ids))
    assert hit == (f"{POOL}/0",)
    assert refused.split("; ") == [
        f"{POOL}/1: its pod has no node",
        f"{POOL}/2: its pod is held back by a scheduling gate",
        f"{POOL}/3: its pod is being deleted already",
    ]
    assert made.pods() == {"mine-1", "mine-2", "mine-3"}
    # Those that the report names are at most three.
    assert place.hit(Fault(FaultKind.KILL, str(POOL), place.learner_ids))[1].endswith("; and 1 more")


def test_a_learner_of_two_pods_is_hit_by_the_loss_of_one(job_server: ApiServer) -> None:
    made = Namespace(job_server, "units")
    pool = {"name": POOL.pool, "learners": 2, "nodesPerLearner": 2}
    owner = made.stateful_set("mine", made.job("mine", regions=[{"name": POOL.region, "pools": [pool]}]))
    for index in range(4):
        made.pod(f"mine-{index}", labels.of_pool("mine", POOL), owner, node="" if index == 0 else f"node-{index}")
    place = made.place("mine")
    assert place.nodes() == {f"{POOL}/0": "node-1", f"{POOL}/1": "node-2"}
    assert place.hit(Fault(FaultKind.KILL, str(POOL), place.learner_ids)) == ((f"{POOL}/0", f"{POOL}/1"), "")
    assert made.pods() == {"mine-0", "mine-3"}


def test_learners_of_a_fallback_pool_are_hit_while_they_run(
    job_server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Namespace(job_server, "fallback")
    spot, steady = PoolKey("west", "spot"), PoolKey("west", "steady")
    pools = [{"name": "spot", "learners": 2, "fallbackAfterSeconds": 60}, {"name": "steady", "learners": 1}]
    job = made.job("mine", regions=[{"name": "west", "pools": pools}])
    of_spot, of_steady = (made.stateful_set(names.stateful_set("mine", pool), job) for pool in (spot, steady))
    for index in range(2):
        made.pod(f"{of_spot['name']}-{index}", labels.of_pool("mine", spot), of_spot, node="")

    def make(*indices: int, node: str = "node-b") -> None:
        for index in indices:
            made.pod(f"{of_steady['name']}-{index}", labels.of_pool("mine", steady), of_steady, node=node)

    make(0, 1)
    waiting = made.pods() - {f"{of_steady['name']}-{index}" for index in range(2)}
    place = made.place("mine")
    assert place.fallbacks == {f"{steady}/1", f"{steady}/2"}
    # One is not there: nothing is said of it, as nothing has to be there.
    region = place.hit(Fault(FaultKind.KILL, "west", place.learner_ids))
    assert region == (
        (f"{steady}/0", f"{steady}/1"),
        "; ".join(f"{spot}/{index}: its pod has no node" for index in (0, 1)),
    )
    assert made.pods() == waiting
    alone = Fault(FaultKind.KILL, f"{steady}/2", (f"{steady}/2",))
    assert place.hit(alone) == ((), f"{steady}/2: no learner runs there")
    drawn = Fault(FaultKind.KILL, f"{steady}/2", (f"{steady}/2",), rate_per_hour=1.0)
    assert place.hit(drawn) == ((), "")
    # A node is that which the pods are on now.
    make(0, 2)
    node = Fault(FaultKind.KILL, "node-b", (f"{spot}/0",), rate_per_hour=1.0, around=place.learner_ids)
    assert place.hit(node) == ((f"{steady}/0", f"{steady}/2"), "")
    assert place.hit(node) == ((), "node-b: no learner runs there")
    make(1, node="node-c")
    flags = ("chaos", "job/mine", *made.flags(), "--for", "2s", "--settle", "0", "--seed", "1")
    assert execute([*flags, "--fault", "kill:*@rate=1e4,by=node"]) == 0
    told = capsys.readouterr().out
    assert "learners that run in a fallback pool are hit while they run: west/steady" in told
    assert f"kill node-c: {steady}/1" in told
    assert made.pods() == waiting


def test_nothing_is_done_unasked(job_server: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    made, _ = with_jobs(job_server, "asked")
    before = made.pods()
    there = ("job/mine", "--namespace", made.name, "--kubeconfig", str(job_server.kubeconfig), "--for", "2s")
    kill = ("--fault", f"kill:{LEARNER}@at=0")
    assert execute(["chaos", *there, *kill]) == 2  # a test has no terminal
    assert "--yes: is needed where nobody can be asked" in capsys.readouterr().err
    assert execute(["chaos", *there, *kill, "--dry-run"]) == 0
    assert f"kill {LEARNER}" in capsys.readouterr().out
    assert made.pods() == before
    assert execute(["chaos", *there, "--fault", "kill:nowhere@at=0", "--yes"]) == 2
    assert "'nowhere' matches no learner of this job" in capsys.readouterr().err
    assert execute(["chaos", *there, "--fault", "pause:*@rate=6,seconds=1", "--yes"]) == 2
    assert "'pause' is not a kind of fault; use kill, evict" in capsys.readouterr().err
    assert execute(["chaos", "job/other", *there[1:], *kill, "--yes"]) == 2
    assert "no job other in namespace asked" in capsys.readouterr().err
    assert made.pods() == before


def test_an_ended_job_is_left_alone(job_server: ApiServer) -> None:
    made, _ = with_jobs(job_server, "ended")
    job_server.set_status(JOB.path(made.name, "mine"), {"phase": "Complete"})
    with pytest.raises(ChaosError, match=r"JOB: mine has ended \(Complete\)"):
        made.place("mine")


def test_it_needs_rights_of_its_own_and_the_role_has_them(
    job_server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    made, pod = with_jobs(job_server, "rights")
    before = made.pods()
    erin = ("--kubeconfig", str(job_server.kubeconfig_for("erin")), "--namespace", made.name)
    kill = ("chaos", "job/mine", *erin, "--fault", f"kill:{LEARNER}@at=0", "--for", "1s", "--settle", "0", "--yes")
    assert execute([*kill]) == 2
    told = capsys.readouterr().err
    assert "not permitted" in told
    assert "diloco chaos --print-role" in told
    assert made.pods() == before
    assert execute(["chaos", "--print-role", "--namespace", made.name]) == 0
    job_server.kubectl("apply", "--filename=-", text=capsys.readouterr().out)
    job_server.bind(ROLE, "erin", made.name)
    assert execute([*kill]) == 0
    assert made.pods() == before - {pod}
