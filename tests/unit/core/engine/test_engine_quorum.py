"""What makes a quorum: learners with an outer gradient, as many as the job requires or as are left."""

import pytest

from diloco.core.engine.actions import Action, AskFragment, Merge, Note
from diloco.core.engine.rounds.grace import overlap_steps
from diloco.spec.status.engine import LearnerState
from tests.support.engine_script import Script, members, name, of, only, options, stepped


def give_up(script: Script, index: int) -> list[Action]:
    """A learner of a job that allows no restart is restarted."""
    script.leave(index)
    return script.join(index, "another")


def load(script: Script, index: int, *fragments: int) -> None:
    """A process that has lost its connection is back, and receives some fragments again."""
    script.rejoin(index, f"process-{index}", tuple(-1 if p in fragments else 0 for p in range(4)))


@pytest.mark.parametrize("declines_first", [True, False])
def test_a_learner_without_work_makes_no_quorum_until_it_has_some(*, declines_first: bool) -> None:
    script = stepped(2, quorum=2)
    load(script, 1, 0)
    actions = [] if declines_first else script.push(0, 0)
    actions += script.decline(1, 0)
    actions += script.push(0, 0) if declines_first else []
    assert members(actions) == []
    assert not of(actions, AskFragment)
    (again,) = [ask for ask in of(script.step(1), AskFragment) if ask.fragment == 0]
    assert (again.learner, again.attempt) == (name(1), 2)
    assert members(script.push(1, 0)) == [[name(0), name(1)]]


def test_one_that_declined_is_asked_again_at_its_next_step_whoever_answers() -> None:
    script = stepped(2, quorum=2)
    script.decline(1, 0)
    (again,) = [ask for ask in of(script.step(1), AskFragment) if ask.fragment == 0]
    assert (again.learner, again.attempt) == (name(1), 2)
    assert "has made a step since it declined" in again.reason


def test_one_that_declines_is_not_asked_again_before_its_next_step() -> None:
    script = stepped(2, quorum=2)
    script.push(0, 0)
    assert of(script.decline(1, 0), AskFragment) == []
    assert [ask.learner for ask in of(script.step(1), AskFragment) if ask.fragment == 0] == [name(1)]


def test_one_whose_report_is_on_its_way_has_no_work_on_what_it_received() -> None:
    script = stepped(2, quorum=2, overlap=4)
    script.push(0, 0)
    script.merge_done(only(script.push(1, 0), Merge), applied=False)
    script.applied(0, 0, 1, step=2)
    script.step(0)  # the report of the step before
    assert not script.state.is_ready(script.state.learners[name(0)], 0)
    script.step(0)
    assert script.state.is_ready(script.state.learners[name(0)], 0)


def test_one_that_waits_at_the_staleness_bound_counts_after_a_lease_too() -> None:
    script = stepped(2, quorum=2, max_staleness_steps=6, overlap=1)
    script.step(1, 5)
    load(script, 1, 0)
    for _ in range(4):
        script.wait(4.0)
        script.alive(0)
        script.alive(1)
        script.step(0)
    assert script.learner(1).state == LearnerState.TRAINING
    script.decline(1, 0)
    assert members(script.push(0, 0)) == [[name(0)]]


def test_one_that_may_go_on_after_a_wait_is_stalled_a_lease_later() -> None:
    script = stepped(2, quorum=2, max_staleness_steps=6, overlap=1)
    script.step(1, 5)
    for _ in range(4):
        script.wait(4.0)
        script.alive(0)
        script.alive(1)
    for fragment in range(4):
        script.applied(1, fragment, 1)
    for _ in range(2):
        script.wait(4.0)
        script.alive(0)
        script.alive(1)
    assert script.learner(1).state == LearnerState.TRAINING
    script.wait(2.0)
    assert script.learner(1).state == LearnerState.STALLED


@pytest.mark.parametrize(("bound", "merged"), [(6, [[name(0)]]), (7, [])])
def test_one_that_waits_at_the_staleness_bound_counts_without_work(bound: int, merged: list[list[str]]) -> None:
    # Waiting for its next step would be in vain: it makes none before something is merged.
    script = stepped(2, quorum=2, max_staleness_steps=bound, overlap=1)
    script.step(1, 5)
    load(script, 1, 0)
    script.decline(1, 0)
    assert members(script.push(0, 0)) == merged


def test_the_quorum_follows_where_a_learner_is_given_up() -> None:
    script = stepped(3, quorum=3, max_restarts=0)
    script.push(0, 0)
    assert members(script.push(1, 0)) == []
    actions = give_up(script, 2)
    assert members(actions) == [[name(0), name(1)]]
    (note,) = [note for note in of(actions, Note) if note.kind == "QuorumFollows"]
    assert note.reason == "sync.quorum is 3, but only 2 learner(s) are left: these are the quorum"
    view = script.view
    assert (view.quorum, view.quorum_wanted) == (2, 3)
    # Each learner that is given up lowers it, but not below one.
    give_up(script, 1)
    assert script.view.quorum == 1
    give_up(script, 0)
    assert script.view.quorum == 1


def test_rounds_are_launched_by_the_quorum_that_is_left() -> None:
    script = stepped(2, quorum=2, max_restarts=0)
    script.push(0, 0)
    script.merge_done(only(script.push(1, 0), Merge))
    give_up(script, 1)
    seen = len(script.all(AskFragment))
    for _ in range(4):
        script.step(0)
    assert {ask.fragment for ask in script.all(AskFragment)[seen:]} - {0}


def test_the_quorum_falls_with_a_pool_that_is_scaled_below_it_and_returns() -> None:
    script = stepped(2, quorum=2)
    script.leave(1)
    script.push(0, 0)
    assert members(script.plan(0)) == [[name(0)]]
    actions = script.plan(0, 1)
    assert not [note for note in of(actions, Note) if note.kind == "QuorumFollows"]
    assert script.view.quorum == 2


def test_one_that_declined_and_then_brought_it_counts_once() -> None:
    script = stepped(3, quorum=3, max_staleness_steps=6, overlap=1)
    script.step(1, 5)
    load(script, 1, 0)
    script.decline(1, 0)
    assert members(script.push(1, 0, steps=1)) == []
    assert members(script.push(0, 0)) == []
    assert members(script.push(2, 0)) == [[name(0), name(1), name(2)]]


def test_the_grace_is_for_the_overlap_as_it_is_now() -> None:
    script = Script(options(1, fragments=4, interval=8, overlap=2, overlap_limit=7))
    state = script.state
    spans = {}
    for allowed in (1, 2, 3):
        state.overlap.allowed = allowed
        spans[allowed] = overlap_steps(state)
    assert spans == {1: 2, 2: 4, 3: 6}
