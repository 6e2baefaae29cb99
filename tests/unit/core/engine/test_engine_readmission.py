"""A learner that is given up because it fails before it can join, and one that is let back in."""

import pytest

from diloco.core.engine.actions import Admit, Checkpoint, Note, Refusal, Refuse
from diloco.core.engine.events import LearnerFailed, LearnerReadmitted
from tests.support.engine_script import Script, name, of, only, options, started


def given_up(*, max_restarts: int = 0) -> Script:
    script = started(2, max_restarts=max_restarts)
    for life in range(max_restarts + 1):
        script.leave(1)
        script.join(1, f"life {life}")
    return script


def test_a_readmitted_learner_joins_and_its_restarts_start_over() -> None:
    script = given_up(max_restarts=1)
    assert script.learner(1).state == "GivenUp"
    actions = script.do(LearnerReadmitted(name(1), script.incarnations[1]))
    assert only(actions, Note).reason == "was given up after 2 restarts and may join again"
    assert of(actions, Checkpoint)
    assert of(script.join(1, "new"), Admit)
    assert script.learner(1).restarts == 0


def test_a_readmitted_learner_is_given_up_by_the_same_limit_again() -> None:
    script = given_up()
    order = LearnerReadmitted(name(1), script.incarnations[1])
    script.do(order)
    script.join(1, "new")
    script.leave(1)
    assert only(script.join(1, "newer"), Refuse).refusal == Refusal.GIVEN_UP
    assert script.do(order) == []
    assert script.learner(1).state == "GivenUp"


def test_an_order_for_a_learner_that_was_not_given_up_does_nothing() -> None:
    script = given_up()
    assert script.do(LearnerReadmitted(name(0), script.incarnations[0])) == []
    assert script.do(LearnerReadmitted("here/pool/77", 0)) == []
    assert script.learner(0).state == "Training"


def test_the_process_before_the_giving_up_may_not_come_back() -> None:
    script = given_up()
    script.do(LearnerReadmitted(name(1), script.incarnations[1]))
    assert only(script.join(1), Refuse).refusal == Refusal.SUPERSEDED


@pytest.mark.parametrize("restarts_first", [True, False])
def test_a_restart_of_the_syncer_before_or_after_a_readmission_keeps_it(*, restarts_first: bool) -> None:
    script = given_up()
    if restarts_first:
        script = script.restarted()
    script.do(LearnerReadmitted(name(1), script.learner(1).incarnation))
    if not restarts_first:
        script = script.restarted()
    assert of(script.join(1, "new"), Admit)


def test_a_learner_that_fails_before_it_can_join_is_given_up() -> None:
    script = Script(options(2, max_restarts=1))
    script.start(0)
    actions = script.do(LearnerFailed(name(1), 0))
    assert only(actions, Note).kind == "LearnerGivenUp"
    assert of(actions, Checkpoint)
    assert script.learner(1).state == "GivenUp"
    assert only(script.join(1), Refuse).refusal == Refusal.GIVEN_UP
    # The order may come again, and the syncer may have been killed meanwhile.
    assert script.do(LearnerFailed(name(1), 0)) == []
    again = script.restarted()
    assert again.learner(1).state == "GivenUp"
    again.do(LearnerReadmitted(name(1), 0))
    assert of(again.join(1), Admit)


def test_the_quorum_follows_a_learner_that_cannot_join() -> None:
    script = Script(options(2, max_restarts=0, quorum=2))
    script.start(0)
    script.do(LearnerFailed(name(1), 0))
    assert script.view.quorum == 1


def test_a_job_whose_learners_cannot_join_fails() -> None:
    script = Script(options(2, max_restarts=0, minimum_learners=2))
    script.start(0)
    script.do(LearnerFailed(name(1), 0))
    view = script.view
    assert view.finished
    assert "failurePolicy.minimumLearners is 2" in view.phase_reason


def test_only_a_learner_without_a_session_is_given_up_for_that() -> None:
    script = Script(options(3, max_restarts=0))
    script.start(0, 1)
    assert script.do(LearnerFailed(name(0), script.incarnations[0])) == [], "it trains"
    script.leave(1)
    assert script.do(LearnerFailed(name(1), script.incarnations[1] - 1)) == [], "it has joined since"
    assert script.do(LearnerFailed("here/pool/77", 0)) == []
    unlimited = Script(options(2))
    assert unlimited.do(LearnerFailed(name(1), 0)) == []
