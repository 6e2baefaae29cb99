"""Which processes are admitted with what, fenced or refused, and what counts as a restart."""

import pytest

from diloco.core.engine.actions import Admit, Fence, Merge, Refusal, Refuse
from diloco.core.engine.events import LeftOut
from tests.support.engine_script import Script, members, merged_at_once, name, of, only, options, started, stepped


def test_the_process_that_was_superseded_cannot_come_back() -> None:
    script = started(1)
    script.join(0, "another")
    assert only(script.join(0), Refuse).refusal == Refusal.SUPERSEDED
    assert script.learner(0).restarts == 1


@pytest.mark.parametrize(
    ("held", "load"),
    [
        ((3, 3, 3, 3), ()),
        ((3, 2, 1, 0), (2, 3)),  # one behind is not too old
        ((3, 4, 3, 9), (1, 3)),  # this syncer has not made them
        ((3, 3, 3, -1), (3,)),
        ((), (0, 1, 2, 3)),
        ((3,), (0, 1, 2, 3)),  # of another model
        ((3, 3, 3, 3, 3), (0, 1, 2, 3)),
    ],
)
def test_a_process_that_lost_its_link_loads_what_it_lacks(held: tuple[int, ...], load: tuple[int, ...]) -> None:
    script = started(1)
    for _ in range(12):
        merged_at_once(script, script.step(0))
    script.leave(0)
    assert script.view.versions == (3, 3, 3, 3)
    assert only(script.join(0, versions=held), Admit).load == load
    assert script.learner(0).restarts == 0


@pytest.mark.parametrize(("left_out", "counted_in"), [(False, (1, 0, 0, 0)), (True, (0, 0, 0, 0))])
def test_a_learner_that_lost_its_session_is_told_which_merges_counted(
    *, left_out: bool, counted_in: tuple[int, ...]
) -> None:
    script = stepped(2)
    script.push(1, 0)
    script.leave(1)
    merge = only(script.push(0, 0), Merge)
    script.merge_done(merge, left_out=(LeftOut(name(1), "it is too large"),) if left_out else ())
    assert only(script.join(1, "process-1"), Admit).counted_in == counted_in


@pytest.mark.parametrize(("held", "furthest"), [((100, 90), (130, 130)), ((150, 140), (150, 140))])
def test_a_restarted_learner_goes_on_at_the_furthest_position_known(
    held: tuple[int, int], furthest: tuple[int, int]
) -> None:
    script = started(1)
    script.step(0, 130)
    script.leave(0)
    admitted = only(script.join(0, "restarted", steps=held[0], data_position=held[1]), Admit)
    assert (admitted.steps, admitted.data_position) == furthest


def test_a_job_that_was_stopped_and_goes_on_counts_no_restarts() -> None:
    script = started(2)
    script.leave(0, clean=True)
    again = script.restarted()
    again.join(0, "new")
    again.join(1, "new too")
    # The second had not left when the syncer stopped: it was lost.
    assert [learner.restarts for learner in again.view.learners] == [0, 1]


def test_a_learner_that_was_evicted_is_not_restarted_until_it_is_lost() -> None:
    script = started(1, max_restarts=0)
    for life in range(3):
        script.leave(0, clean=True)
        assert of(script.join(0, f"life {life}"), Admit)
    assert script.learner(0).restarts == 0
    script.leave(0)
    assert only(script.join(0, "lost"), Refuse).refusal == Refusal.GIVEN_UP


def test_a_learner_that_is_lost_with_its_pod_is_not_restarted() -> None:
    script = Script(options(1, max_restarts=0))
    script.join(0, "pod-1/a")
    for life in range(2, 5):
        script.leave(0)
        admitted = only(script.join(0, f"pod-{life}/a"), Admit)
        assert admitted.reason == "restarted in another pod, loads the model"
    # Also if the syncer was killed meanwhile.
    again = script.restarted()
    assert only(again.join(0, "pod-5/a"), Admit).reason == "restarted in another pod, loads the model"
    assert again.learner(0).restarts == 0
    # In its own pod it has failed.
    again.leave(0)
    assert only(again.join(0, "pod-5/b"), Refuse).refusal == Refusal.GIVEN_UP


@pytest.mark.parametrize(("earlier", "later"), [("a", "pod-1/b"), ("pod-1/a", "b"), ("a", "b"), ("pod-1/a", "pod-1/b")])
def test_a_process_whose_pod_is_the_same_or_not_told_is_restarted(earlier: str, later: str) -> None:
    script = Script(options(1))
    script.join(0, earlier)
    script.leave(0)
    assert only(script.join(0, later), Admit).reason == "restarted (restart 1), loads the model"


def test_whoever_is_fenced_is_not_waited_for() -> None:
    script = stepped(3)
    script.push(0, 0)
    assert not of(script.push(1, 0), Merge)
    # The same process again: the session that got the request is over.
    assert members(script.join(2)) == [[name(0), name(1)]]


def test_a_new_process_is_measured_anew_and_one_that_lost_its_link_is_not() -> None:
    script = started(1)
    script.step(0, seconds=3.0)
    script.leave(0)
    script.join(0, versions=(0, 0, 0, 0))
    assert script.learner(0).step_seconds == 3.0
    script.join(0, "another")
    assert script.learner(0).step_seconds is None


def test_an_admission_says_why() -> None:
    script = Script(options(1))
    reasons = [only(script.join(0), Admit).reason]
    script.ready(0)
    script.leave(0)
    reasons.append(only(script.join(0, versions=(0, 0, 0, -1)), Admit).reason)
    reasons.append(only(script.join(0, "second"), Admit).reason)
    reasons.append(only(script.join(0, "third"), Admit).reason)
    script.leave(0, clean=True)
    reasons.append(only(script.join(0, "fourth"), Admit).reason)
    assert reasons == [
        "first join",
        "back after its connection broke, loads 1 of 4 fragments",
        "restarted (restart 1), loads the model",
        "restarted (restart 2), loads the model",
        "restarted after leaving, loads the model",
    ]


def test_a_session_that_is_replaced_is_told_why() -> None:
    script = started(1)
    again, another = only(script.join(0), Fence), only(script.join(0, "another"), Fence)
    assert (again.refusal, again.reason) == (Refusal.LEASE_EXPIRED, "the same process has joined again")
    assert (another.refusal, another.reason) == (Refusal.SUPERSEDED, "another process has joined with this id")


def test_a_process_that_was_superseded_long_ago_cannot_come_back() -> None:
    script = started(1)
    for number in range(20):
        script.begin(0, f"later {number}")
    for held in ((0, 0, 0, 0), (-1, -1, -1, 0)):
        assert only(script.join(0, versions=held), Refuse).refusal == Refusal.SUPERSEDED
    assert of(script.join(0, "later 19", versions=(0, 0, 0, 0)), Admit)


def test_the_latest_sixteen_processes_of_a_learner_are_remembered() -> None:
    script = Script(options(1))
    for number in range(40):
        script.join(0, f"process {number}")
    remembered = script.engine.snapshot(script.now)["learners"][name(0)]["superseded"]
    assert remembered == [f"process {number}" for number in range(23, 39)]


def test_the_view_says_how_long_a_learner_loads_and_whether_it_has_left() -> None:
    script = Script(options(1))
    script.join(0)
    script.wait(7.0)
    script.alive(0)
    assert (script.learner(0).loading_seconds, script.learner(0).left) == (7.0, False)
    script.ready(0)
    assert script.learner(0).loading_seconds is None
    script.leave(0, clean=True)
    assert script.learner(0).left
    script.begin(0)
    script.leave(0)
    assert not script.learner(0).left
