"""Which nodes are avoided, decision by decision."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from diloco.spec.status import MOST_AVOIDED_NODES, MOST_LEARNERS_OF_NODE, AvoidedNode, JobStatus
from diloco_operator.decide.avoided_nodes import (
    AVOIDED_SECONDS,
    WITHIN_SECONDS,
    WORKS_SECONDS,
    PoolPods,
    avoided_nodes,
    begun,
    has_to_move,
    nodes_to_avoid,
)
from diloco_operator.decide.observed import ChildKey, Object
from diloco_operator.decide.workloads import PoolWorkload
from diloco_operator.manifests.avoidance import affinity_of
from diloco_operator.names import PoolKey
from testbed.virtual_cluster.world_pods import crashing, running, stamp

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
UNTIL = NOW + timedelta(seconds=AVOIDED_SECONDS)
BAD = "crash"


def workload(pool: str = "fast", cluster: str = "") -> PoolWorkload:
    return PoolWorkload(PoolKey("here", pool), ChildKey("StatefulSet", f"job--{pool}", cluster), None, 8)


def pod(node: str, status: Object | None = None) -> Object:
    return {"metadata": {"name": "p"}, "spec": {"nodeName": node} if node else {}, "status": status or works()}


def works(seconds: float = 3600) -> Object:
    return running(NOW - timedelta(seconds=seconds))


def pool(*pods: tuple[str, Object | None], name: str = "fast", cluster: str = "") -> PoolPods:
    return PoolPods(workload(name, cluster), {index: pod(node, status) for index, (node, status) in enumerate(pods)})


def a_bad_node(crash: Object | None = None, others: int = 2) -> PoolPods:
    crash = crash or crashing(NOW)
    return pool(("a", crash), ("a", crash), *((f"n{one}", None) for one in range(others)))


def entry(node: str = "a", *learners: str, until: datetime = UNTIL, message: str | None = None) -> AvoidedNode:
    return AvoidedNode(node=node, until=until, learners=learners or ("here/fast/0",), message=message)


def decide(*pools: PoolPods, before: Sequence[AvoidedNode] = (), forbidden: Sequence[str] = ()) -> list[str]:
    return [one.node for one in avoided_nodes(before, pools, NOW, forbidden)]


def test_a_node_on_which_two_learners_keep_crashing_is_avoided() -> None:
    found = avoided_nodes((), [a_bad_node()], NOW, ())
    assert found == (entry("a", "here/fast/0", "here/fast/1"),)


def test_crashes_of_one_learner_do_not_speak_against_a_node() -> None:
    assert decide(pool(("a", crashing(NOW)), ("a", None), ("b", None), ("c", None))) == []


def test_learners_of_two_pools_speak_against_a_node_together() -> None:
    pools = [pool(("a", crashing(NOW)), ("b", None), name=name) for name in ("fast", "slow")]
    (found,) = avoided_nodes((), pools, NOW, ())
    assert found.learners == ("here/fast/0", "here/slow/0")


@pytest.mark.parametrize(
    "others",
    [
        [("b", crashing(NOW))],
        [("b", crashing(NOW)), ("c", crashing(NOW)), ("d", None)],
        [("b", works(WORKS_SECONDS - 1)), ("c", works(1))],
        [("", None)],
        [],
    ],
    ids=["everywhere", "at most nodes", "too early to say", "no node", "one node"],
)
def test_where_the_program_may_be_the_cause_none_is_avoided(others: list[tuple[str, Object | None]]) -> None:
    assert decide(pool(("a", crashing(NOW)), ("a", crashing(NOW)), *others)) == []


def test_others_have_to_run_longer_than_those_that_crash() -> None:
    late = crashing(NOW, ran_seconds=600)
    assert decide(pool(("a", late), ("a", late), ("b", works(599)), ("c", works(599)))) == []
    assert decide(pool(("a", late), ("a", late), ("b", works(601)), ("c", works(601)))) == ["a"]


def test_of_two_nodes_one_may_be_avoided_and_not_both() -> None:
    assert decide(a_bad_node(others=1)) == ["a"]
    other = pool(("b", crashing(NOW)), ("b", crashing(NOW)), ("a", None), ("a", None))
    assert decide(other, before=[entry("a")]) == ["a"]
    more = pool(("c", None), ("d", None), name="more")
    assert decide(other, more, before=[entry("a")]) == ["a", "b"]


def test_a_pool_that_has_only_this_node_goes_with_the_others() -> None:
    alone = pool(("a", crashing(NOW)), name="slow")
    (found,) = avoided_nodes((), [a_bad_node(), alone], NOW, ())
    assert "here/slow/0" in found.learners
    assert nodes_to_avoid(workload("slow"), [found], NOW) == ("a",)


@pytest.mark.parametrize(
    "crash",
    [
        crashing(NOW, reason="OOMKilled"),
        crashing(NOW, code=0),
        crashing(NOW, code=2),
        crashing(NOW, code=3),
        crashing(NOW - timedelta(seconds=WITHIN_SECONDS)),
    ],
    ids=["out of memory", "done", "bad input", "refused", "long ago"],
)
def test_other_ends_do_not_count(crash: Object) -> None:
    assert decide(a_bad_node(crash)) == []


@pytest.mark.parametrize(("restarts", "expected"), [(1, []), (2, ["a"])])
def test_a_single_crash_does_not_count(restarts: int, expected: list[str]) -> None:
    crash = crashing(NOW)
    crash["containerStatuses"][0]["restartCount"] = restarts
    assert decide(a_bad_node(crash)) == expected


def test_a_container_that_has_just_ended_counts_with_that_end() -> None:
    crash = crashing(NOW)
    crash["containerStatuses"][0] |= {"restartCount": 1, "state": crash["containerStatuses"][0]["lastState"]}
    assert decide(a_bad_node(crash)) == ["a"]


def test_a_container_that_the_runtime_cannot_start_counts() -> None:
    crash = crashing(NOW, code=128, reason="StartError")
    crash["containerStatuses"][0]["lastState"]["terminated"]["startedAt"] = "1970-01-01T00:00:00Z"
    assert decide(a_bad_node(crash)) == ["a"]


def test_it_stays_for_its_time_when_nothing_shows_it_any_more() -> None:
    before = (entry("a", until=NOW + timedelta(seconds=1)), entry("b", until=NOW))
    assert avoided_nodes(before, [], NOW, ()) == before[:1]
    assert avoided_nodes(before, [pool(("c", None))], NOW, ()) == before[:1]


def test_an_end_by_a_clock_that_was_ahead_is_an_hour_away_at_most() -> None:
    ahead = entry("a", until=NOW + timedelta(days=365))
    found = avoided_nodes([ahead], [], NOW + timedelta(seconds=0.5), ())
    assert found == (entry("a"),)
    assert begun([ahead], found) == "", "it is avoided already"
    assert avoided_nodes(found, [], NOW + timedelta(seconds=1), ()) == found


def test_after_its_time_it_begins_anew_only_with_new_crashes() -> None:
    before = [entry("a", until=NOW)]
    assert decide(pool(("a", None), ("a", None), ("b", None)), before=before) == []
    (found,) = avoided_nodes(before, [a_bad_node()], NOW, ())
    assert found.until == UNTIL
    assert begun(before, [found]).startswith("a is avoided until 2026-05-01T13:00:00Z: here/fast/0 and here/fast/1")
    assert begun([found], [found]) == ""


def test_a_node_of_another_cluster_is_another_one() -> None:
    far = a_bad_node()._replace(workload=workload(cluster="team/far"))
    found = avoided_nodes((), [far, pool(("a", None), ("b", None))], NOW, ())
    assert [(one.cluster, one.node) for one in found] == [("team/far", "a")]
    assert nodes_to_avoid(workload(cluster="team/far"), found, NOW) == ("a",)
    assert nodes_to_avoid(workload(), found, NOW) == ()


def test_pools_whose_learners_do_not_crash_there_do_not_avoid_it() -> None:
    found = [entry("a", "here/fast/0"), entry("b", "here/fast/0", until=NOW), entry("c", message="no right")]
    assert nodes_to_avoid(workload(), found, NOW) == ("a",)
    assert nodes_to_avoid(workload("fas"), found, NOW) == ()


def test_without_the_right_to_delete_pods_it_says_so_until_its_end() -> None:
    (found,) = avoided_nodes((), [a_bad_node()], NOW, {""})
    assert found.message == "the operator has no right to delete pods in this namespace"
    assert avoided_nodes([found], [], NOW, ()) == (found,), "or its effect would come and go"
    assert begun((), [found]) == ""
    assert nodes_to_avoid(workload(), [found], NOW) == ()


def test_a_bounded_number_of_nodes_and_learners_is_named() -> None:
    many = [(f"a{node}", crashing(NOW)) for node in range(MOST_AVOIDED_NODES + 4) for _ in range(2)]
    found = avoided_nodes((), [pool(*many, *((f"b{node}", None) for node in range(40)))], NOW, ())
    assert len(found) == MOST_AVOIDED_NODES
    crowd = [("a", crashing(NOW))] * (MOST_LEARNERS_OF_NODE + 9)
    others = pool(("a", crashing(NOW)), ("b", None), name="slow")
    (one,) = avoided_nodes((), [pool(*crowd, ("b", None)), others], NOW, ())
    assert len(one.learners) == MOST_LEARNERS_OF_NODE
    assert "here/slow/0" in one.learners, "or its pool would not avoid the node"
    again = avoided_nodes([one], [pool(*crowd, ("b", None)), others], NOW, ())
    assert again == (one,)
    JobStatus.model_validate(JobStatus(avoided_nodes=found).as_object())


def test_a_cluster_with_many_bad_nodes_leaves_room_for_those_of_others() -> None:
    many = [(f"a{node}", crashing(NOW)) for node in range(40) for _ in range(2)]
    crowd = pool(*many, *((f"b{node}", None) for node in range(60)), cluster="team/far")
    found = avoided_nodes((), [crowd, a_bad_node()], NOW, ())
    assert (None, "a") in [(one.cluster, one.node) for one in found]
    assert len(found) <= MOST_AVOIDED_NODES


@pytest.mark.parametrize("name", ["UPPER", "a b", "x" * 254, "-"])
def test_what_is_no_name_of_a_node_is_never_written(name: str) -> None:
    assert decide(pool((name, crashing(NOW)), (name, crashing(NOW)), ("b", None), ("c", None))) == []


def test_a_pod_moves_that_crashes_there_now_and_was_made_without_knowing() -> None:
    crashes = pod("a", crashing(NOW))
    assert has_to_move(crashes, {"a"}, NOW)
    assert not has_to_move(crashes, {"b"}, NOW)
    assert not has_to_move(pod("a"), {"a"}, NOW)
    knew = {**crashes, "spec": {"nodeName": "a", "affinity": affinity_of(["a"])}}
    knew["metadata"] = {"name": "p", "labels": {"diloco.dev/revision": "r"}}
    assert not has_to_move(knew, {"a"}, NOW), "it came there although it knew"
    ready = crashing(NOW)
    ready["conditions"] = [{"type": "Ready", "status": "True"}]
    ready["containerStatuses"][0] |= {"ready": True, "state": {"running": {"startedAt": stamp(NOW)}}}
    assert not has_to_move(pod("a", ready), {"a"}, NOW), "it trains"
