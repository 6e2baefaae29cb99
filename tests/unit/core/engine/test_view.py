"""The view of an engine's state."""

import math
from dataclasses import replace
from typing import Any

import pytest

from diloco.core.account.time_account import Account
from diloco.core.account.time_class import TimeClass
from diloco.core.engine.records import LearnerRecord, Round
from diloco.core.engine.snapshot import fresh
from diloco.core.engine.state import EngineState
from diloco.core.engine.view import view
from diloco.spec.status.engine import EvaluationStatus, LearnerState, LearnerStatus, Phase
from tests.support.engine_script import name, options


def state_with(*records: LearnerRecord, **changes: Any) -> EngineState:
    """The state of a job of four fragments with these learners, all of them planned."""
    state = replace(fresh(options(len(records)), 1), **changes)
    state.learners = {record.id: record for record in records}
    return state


def one(record: LearnerRecord, **changes: Any) -> LearnerStatus:
    """The view of a job's only learner."""
    (learner,) = view(state_with(record, **changes), 0.0).learners
    return learner


@pytest.mark.parametrize(
    ("held", "behind"),
    [
        ([3, 5, 2, 9], 0),
        ([2, 5, 2, 6], 4),
        ([-1, -1, -1, -1], 19),  # as many as if it began with the initial model
        ([0, 0, 0, 0], 19),
        ([4, 5, 2, 9], 0),  # a learner that claims a version that does not exist is not ahead
        ([9, 0, 2, 9], 5),
        ([], 0),
    ],
)
def test_a_learner_is_behind_by_the_merges_that_it_has_not_applied(held: list[int], behind: int) -> None:
    assert one(LearnerRecord(name(0), versions=held), versions=[3, 5, 2, 9]).versions_behind == behind


@pytest.mark.parametrize(
    ("seconds", "merged"),
    [
        ({}, None),
        ({TimeClass.MERGED: 0.25, TimeClass.AWAY: 0.25}, 0.5),
        ({TimeClass.MERGED: 6.0, TimeClass.LOST: 2.0}, 0.75),
        ({TimeClass.AWAY: 2.0}, 0.0),
        ({TimeClass.MERGED: 3.0}, 1.0),
    ],
)
def test_the_merged_share_is_of_the_allotted_time(seconds: dict[TimeClass, float], merged: float | None) -> None:
    given = sum(seconds.values())
    record = LearnerRecord(name(0), allotted_seconds=given, account=Account(seconds))
    shown = view(state_with(record), 0.0)
    assert shown.merged == merged
    assert (shown.learners[0].allotted_seconds, sum(shown.time_seconds.values())) == (given, given)


def test_the_training_loss_is_the_mean_of_those_that_train() -> None:
    def record(index: int, loss: float | None, state: LearnerState = LearnerState.TRAINING) -> LearnerRecord:
        return LearnerRecord(name(index), state, loss=loss)

    known = [record(0, 2.0), record(1, 3.0), record(2, math.nan), record(3, None), record(4, 9.0, LearnerState.STALLED)]
    shown = view(state_with(*known), 0.0)
    assert shown.train_loss == 2.5
    assert [one.loss for one in shown.learners] == [2.0, 3.0, None, None, 9.0]
    assert view(state_with(record(0, math.inf)), 0.0).train_loss is None


def test_the_evaluation_shown_is_the_latest_that_is_credible() -> None:
    found = [
        EvaluationStatus(100, loss, 1.0, final=False, doubted=doubted)
        for loss, doubted in ((5.0, False), (3.0, False), (0.1, True))
    ]
    shown = view(state_with(evaluations=found), 0.0)
    assert (shown.eval_loss, shown.evaluations) == (3.0, tuple(found))
    assert view(state_with(), 0.0).eval_loss is None


def test_rounds_that_learners_are_asked_ahead_for_are_not_in_flight_yet() -> None:
    launched = [None, 2.0, 3.0, None, None]
    rounds = {step: Round(step, step, 1, launched_at=at) for step, at in enumerate(launched)}
    assert view(state_with(rounds=rounds), 4.0).rounds_in_flight == 2


@pytest.mark.parametrize("phase", Phase)
def test_a_job_that_failed_is_finished_and_not_complete(phase: Phase) -> None:
    shown = view(state_with(phase=phase, phase_reason="so it came"), 0.0)
    assert (shown.phase, shown.phase_reason) == (phase.value, "so it came")
    assert shown.finished == (phase in (Phase.COMPLETE, Phase.FAILED))
    assert shown.complete == (phase == Phase.COMPLETE)


def test_what_withdrawn_learners_did_counts_though_they_are_not_shown() -> None:
    here = LearnerRecord(name(0), LearnerState.TRAINING, step=3, tokens=300)
    gone = LearnerRecord("here/pool/7", step=4, tokens=400)
    state = state_with(here)
    state.learners[gone.id] = gone
    shown = view(state, 0.0)
    assert [learner.id for learner in shown.learners] == [name(0)]
    assert (shown.inner_steps, shown.trained_tokens) == (7, 700)
