"""Learners of several nodes that find only some of them: none keeps a node, and one after the other is tried again."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from diloco.spec.status.job import UnplacedLearner
from diloco_operator.decide.learners.unplaced import FIRST_PAUSE, LONGEST_PAUSE, unplaced
from diloco_operator.decide.objects.workloads import PoolWorkload
from diloco_operator.decide.observed import ChildKey, Object
from diloco_operator.manifests.placement.holds import GATE
from diloco_operator.names import PoolKey
from testbed.virtual_cluster.world_pods import stamp, unschedulable
from tests.unit.operator.decide.learners.units_world import POOL, placed, pool, said, units_world
from tests.unit.operator.decide.training_world import degraded

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
PATIENCE = timedelta(seconds=60)
WORKLOAD = PoolWorkload(
    PoolKey("here", "big"), ChildKey("StatefulSet", "big"), None, 4, given_up=frozenset({3}), nodes=2
)


def pods(states: str) -> dict[int, Object]:
    """Pods by index: with a node (P), waiting for one for long (W) or just now (w), held back (H), missing (-)."""
    return {index: _pod(state) for index, state in enumerate(states.replace(" ", "")) if state != "-"}


def _pod(state: str) -> Object:
    status: Object = unschedulable("no node") if state in "Ww" else {}
    if status:
        since = NOW - (PATIENCE if state == "W" else timedelta(seconds=1))
        status["conditions"][0]["lastTransitionTime"] = stamp(since)
    spec: Object = {"nodeName": "n"} if state == "P" else {"schedulingGates": [{"name": GATE}]} if state == "H" else {}
    return {"metadata": {"name": "p"}, "spec": spec, "status": status}


def held(index: int, seconds: float, times: int = 1) -> UnplacedLearner:
    """A learner that is held back for so many seconds from now on."""
    return UnplacedLearner(index=index, times=times, until=NOW + timedelta(seconds=seconds))


def tried(index: int, times: int = 1) -> UnplacedLearner:
    return UnplacedLearner(index=index, times=times)


CASES: dict[str, tuple[tuple[UnplacedLearner, ...], str, tuple[UnplacedLearner, ...]]] = {
    "all are placed": ((), "PP PP PP", ()),
    "one has no node at all": ((), "PP WW PP", ()),
    "one has waited for a moment only": ((), "PP Pw PP", ()),
    "one has a part": ((), "PP PW PP", (held(1, 60),)),
    "two have a part, and one may complete": ((), "PW WP PP", (held(1, 60),)),
    "the one with most nodes may complete": ((), "WW PW PP", (held(1, 60),)),
    "the last one waits for what was freed": ((held(1, 30),), "PW HH PP", (held(1, 30),)),
    "the last one has waited for that": ((held(1, 0),), "PW HH PP", (held(0, 60), held(1, 0))),
    "its pause is over": ((held(1, 0),), "PP HH PP", (tried(1),)),
    "its pause is not over": ((held(1, 1),), "PP HH PP", (held(1, 1),)),
    "one at a time": ((held(0, -1), held(1, -2)), "HH HH PP", (held(0, -1), tried(1))),
    "another is being tried": ((held(0, -1), tried(1)), "HH H- PP", (held(0, -1), tried(1))),
    "another waits for its first minute": ((held(0, -1), tried(1)), "HH ww PP", (held(0, -1), tried(1))),
    "another has no node at all": ((held(0, -1), tried(1)), "HH WW PP", (tried(0), tried(1))),
    "another is being placed": ((held(0, -1),), "HH Pw PP", (held(0, -1),)),
    "it was tried, and has a part again": ((tried(1, 2),), "PP PW PP", (held(1, 240, 3),)),
    "it was tried, and has its nodes": ((tried(1, 2),), "PP PP PP", ()),
    "it is given up": ((held(3, 30),), "PP PP PP HH", ()),
    "one that is given up has a part": ((), "PP PP PP PW", ()),
}
"""Those of the last time, the pods, and those of now."""


@pytest.mark.parametrize("case", CASES)
def test_a_learner_has_all_its_nodes_or_none(case: str) -> None:
    before, states, after = CASES[case]
    assert unplaced(WORKLOAD, before, pods(states), NOW, PATIENCE) == after


def test_pauses_double_up_to_the_longest() -> None:
    lengths = []
    for times in range(1, 6):
        (found,) = unplaced(WORKLOAD, (tried(1, times),), pods("PP PW PP"), NOW, PATIENCE)
        assert found.until is not None
        lengths.append(found.until - NOW)
    assert lengths == [2 * FIRST_PAUSE, 4 * FIRST_PAUSE, *[LONGEST_PAUSE] * 3]
    (found,) = unplaced(WORKLOAD, (tried(1, 10_000),), pods("PP PW PP"), NOW, PATIENCE)
    assert found.until == NOW + LONGEST_PAUSE


def test_learners_of_two_pools_are_not_tried_at_the_same_moment() -> None:
    lives: list[Object] = [{"metadata": {"uid": f"uid-{number}"}} for number in range(20)]
    found = [unplaced(replace(WORKLOAD, live=live), (), pods("PP PW PP"), NOW, PATIENCE)[0].until for live in lives]
    assert len(set(found)) > 5
    assert all(one is not None and NOW + FIRST_PAUSE <= one <= NOW + 1.2 * FIRST_PAUSE for one in found)


def test_a_learner_that_fits_only_in_part_gives_its_nodes_back() -> None:
    w = units_world(2, room=3)
    w.run(60)
    assert placed(w) == [0, 1], "the node of its first pod is free for others"
    assert (pool(w)["ready"], pool(w)["readyPods"], pool(w)["held"]) == (1, 2, 1)
    status, reason, text = degraded(w)
    assert (status, reason) == ("True", "Unschedulable")
    assert text.startswith(f"1 of 2 learners of {POOL} unschedulable: only some of its 2 pods find a node, so none of")
    (event,) = said(w, "PlacedInPart")
    assert event.startswith(f"held back, as only some of its pods found a node: {POOL}/1 until ")
    assert w.status["learners"]["summary"] == "1/2"
    w.run(900, every=20)
    times = pool(w)["unplaced"][0]["times"]
    assert 3 <= times <= 6
    assert len(said(w, "PlacedInPart")) == times
    w.pods.room = 4
    w.run(700, every=20)
    assert placed(w) == [0, 1, 2, 3]
    assert degraded(w) == ("False", "AsExpected", "")
    assert pool(w).get("unplaced") is pool(w).get("held") is None
    assert w.status["learners"]["summary"] == "2/2"


def test_learners_that_hold_each_others_nodes_are_placed_one_by_one() -> None:
    w = units_world(3, room=0)
    pods_ = w.pods.pods
    w.pods.room = 3
    for name in ("demo--here-big-1", "demo--here-big-3", "demo--here-big-5"):
        pods_[name] = pods_.pop(name)  # the scheduler takes the first pod of each learner first
    w.tick()
    assert placed(w) == [0, 2, 4]
    w.run(60)
    assert placed(w) == [0, 1], "one completes with what the others leave"
    assert w.status["learners"]["summary"] == "1/3"
    w.pods.room = 6
    w.run(900, every=20)
    assert w.status["learners"]["summary"] == "3/3"


def test_an_elastic_pool_does_without_it() -> None:
    w = units_world(2, room=3, minimumLearners=1)
    w.run(30)
    assert pool(w)["held"] == 1
    assert degraded(w) == ("False", "AsExpected", "")
    assert pool(w)["waiting"] == 1
    assert "only some of its 2 pods find a node" in pool(w)["message"]


def test_its_learner_runs_in_the_next_pool_meanwhile() -> None:
    w = units_world(2, room=3, then=1, fallbackAfterSeconds=30)
    assert (pool(w)["held"], pool(w)["fallbackLearners"]) == (1, 1)
    w.pods.room = 4
    for _ in range(3):
        w.run(60)
        assert (pool(w)["desired"], pool(w)["fallbackLearners"]) == (2, 1), "whether it is held back or tried"
    assert w.status["regions"][0]["pools"][1]["training"] == 2
    assert degraded(w) == ("False", "AsExpected", "")


def test_a_suspended_job_forgets_which_were_held_back() -> None:
    w = units_world(2, room=3)
    w.run(60)
    w.change(suspend=True)
    w.run(120)
    assert "unplaced" not in pool(w)
    assert w.condition("Suspended")["status"] == "True"


def test_what_is_held_back_stays_so_while_the_manifest_is_refused() -> None:
    w = units_world(2, room=3)
    w.run(60)
    before = pool(w)["unplaced"]
    w.change(model={})
    w.run(300)
    assert w.status["phase"] == "Invalid"
    assert (pool(w)["unplaced"], pool(w)["ready"]) == (before, 1)
    assert placed(w) == [0, 1]
