from datetime import UTC, datetime, timedelta

import pytest

from diloco_operator.decide.causes.bad_nodes import WITHIN_SECONDS, WORKS_SECONDS, bad_node_causes
from diloco_operator.decide.objects.workloads import PoolWorkload
from diloco_operator.decide.observed import ChildKey, Object
from diloco_operator.decide.reasons import Reason
from diloco_operator.names import PoolKey
from testbed.virtual_cluster.operator_world import World, job_object
from testbed.virtual_cluster.world_pods import crashing, running

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
Pool = tuple[PoolWorkload, dict[int, Object]]


def works(seconds: float = 3600) -> Object:
    return running(NOW - timedelta(seconds=seconds))


def pod(node: str, status: Object | None = None) -> Object:
    return {"metadata": {"name": "p"}, "spec": {"nodeName": node} if node else {}, "status": status or works()}


def pool(*pods: tuple[str, Object | None], name: str = "fast", cluster: str = "") -> Pool:
    workload = PoolWorkload(PoolKey("here", name), ChildKey("StatefulSet", f"job--{name}", cluster), None, 8)
    return workload, {index: pod(node, status) for index, (node, status) in enumerate(pods)}


def a_bad_node(crash: Object | None = None, cluster: str = "") -> Pool:
    crash = crash or crashing(NOW)
    return pool(("a", crash), ("a", crash), ("n1", None), ("n2", None), cluster=cluster)


def messages(*pools: Pool) -> list[str]:
    causes = bad_node_causes(pools, NOW)
    assert {one.reason for one in causes} <= {Reason.NODE_SUSPECT}
    return [one.message for one in causes]


def test_a_node_on_which_two_learners_crash_is_named_with_what_to_do() -> None:
    (text,) = messages(a_bad_node())
    assert text == "here/fast/0, here/fast/1 keep crashing on a, and others work elsewhere: kubectl cordon a"


def test_a_node_of_another_cluster_is_another_one() -> None:
    crash = crashing(NOW)
    here, there = (pool(("a", crash), ("b", None), cluster=cluster) for cluster in ("", "far"))
    assert messages(here, there) == []
    (text,) = messages(a_bad_node(cluster="far"))
    assert "a in cluster far" in text


def test_crashes_of_one_learner_do_not_speak_against_a_node() -> None:
    assert messages(pool(("a", crashing(NOW)), ("a", None), ("b", None), ("c", None))) == []


def test_learners_of_two_pools_speak_against_a_node_together() -> None:
    (text,) = messages(*(pool(("a", crashing(NOW)), ("b", None), name=name) for name in ("fast", "slow")))
    assert text.startswith("here/fast/0, here/slow/0 keep crashing on a")


@pytest.mark.parametrize(
    "others",
    [
        [("b", crashing(NOW))],
        [("b", crashing(NOW)), ("c", crashing(NOW)), ("d", None)],
        [("b", works(WORKS_SECONDS - 1)), ("c", works(1))],
        [("", None)],
        [("UPPER", None)],
        [],
    ],
    ids=["everywhere", "at most nodes", "too early to say", "no node", "no name of a node", "one node"],
)
def test_where_the_program_may_be_the_cause_none_is_named(others: list[tuple[str, Object | None]]) -> None:
    assert messages(pool(("a", crashing(NOW)), ("a", crashing(NOW)), *others)) == []


def test_others_have_to_run_longer_than_those_that_crash() -> None:
    late = crashing(NOW, ran_seconds=600)
    assert messages(pool(("a", late), ("a", late), ("b", works(599)), ("c", works(599)))) == []
    assert messages(pool(("a", late), ("a", late), ("b", works(601)), ("c", works(601))))


LAST = crashing(NOW)["containerStatuses"][0]["lastState"]
NOT_STARTED = {"exitCode": 128, "reason": "StartError", "startedAt": "1970-01-01T00:00:00Z"}


def changed(**container: object) -> Object:
    crash = crashing(NOW)
    crash["containerStatuses"][0] |= container
    return crash


@pytest.mark.parametrize(
    ("crash", "named"),
    [
        (crashing(NOW, reason="OOMKilled"), False),
        (crashing(NOW, code=0), False),
        (crashing(NOW, code=2), False),
        (crashing(NOW, code=3), False),
        (crashing(NOW - timedelta(seconds=WITHIN_SECONDS)), False),
        (changed(restartCount=1), False),
        (changed(restartCount=2), True),
        (changed(restartCount=1, state=LAST), True),
        (changed(lastState={"terminated": LAST["terminated"] | NOT_STARTED}), True),
    ],
    ids=["memory", "done", "bad input", "refused", "long ago", "once", "twice", "ended just now", "cannot start"],
)
def test_which_ends_of_containers_count(crash: Object, named: bool) -> None:
    assert bool(messages(a_bad_node(crash))) == named


def test_it_is_the_reason_while_learners_crash_there() -> None:
    job = job_object(tokens=100_000_000)
    job["spec"]["regions"][1]["pools"][0]["learners"] = 6
    w = World(job=job)
    w.pods.nodes = ("node-1", "node-2", "node-3")
    w.run(60)
    w.run(180, every=30)
    before = set(w.pods.pods)
    w.pods.broken = {"node-2"}
    w.run(60)
    assert w.condition("Degraded")["reason"] == "NodeSuspect"
    assert "keep crashing on node-2, and others work elsewhere" in w.condition("Degraded")["message"]
    assert set(w.pods.pods) == before, "the node is a person's to judge"
    w.pods.broken = set()
    w.run(60)
    assert w.condition("Degraded")["status"] == "False"
