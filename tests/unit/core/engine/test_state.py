"""Values that are derived from the engine's state."""

from typing import Any

import pytest

from diloco.core.engine import snapshot
from diloco.core.engine.members.credit import Credit
from diloco.core.engine.records import LearnerRecord
from diloco.core.engine.rounds.averages import StepAverage
from diloco.core.engine.state import EngineState
from diloco.spec.status.engine import LearnerState
from tests.support.engine_script import name, options


def state_of(learners: int = 1, **changes: Any) -> EngineState:
    """Learners that train, all planned."""
    state = snapshot.fresh(options(learners, **changes), 1)
    for record in state.learners.values():
        record.incarnation = 1_000_001
        record.versions, record.merged_into = [0] * 4, [0] * 4
        record.received_steps, record.turn_steps = [0] * 4, [0] * 4
        state.becomes(record, LearnerState.TRAINING)
    return state


def pace(step_seconds: float | None, steps: int = 1, tokens: int = 100) -> StepAverage:
    """Of one report; None: of none."""
    average = StepAverage()
    if step_seconds is not None:
        average.add(step_seconds, steps, tokens)
    return average


def trains(**changes: Any) -> LearnerRecord:
    return LearnerRecord("one", state=LearnerState.TRAINING, **changes)


@pytest.mark.parametrize(
    ("record", "tokens_per_second"),
    [
        (trains(pace=pace(0.5, tokens=100)), 200.0),
        (trains(pace=pace(2.0, steps=10, tokens=500)), 25.0),
        (trains(step=10, tokens=500), 0.0),  # of a process that has not reported yet
        (trains(pace=pace(0.0, tokens=500)), 0.0),
        (trains(pace=pace(0.5, tokens=100), credit=Credit(most_tokens_per_second=150.0)), 150.0),
        (trains(pace=pace(0.5, tokens=100), credit=Credit(most_tokens_per_second=250.0)), 200.0),
    ],
)
def test_speed_is_the_tokens_of_a_step_over_its_seconds(record: LearnerRecord, tokens_per_second: float) -> None:
    assert record.tokens_per_second == tokens_per_second


def test_merged_tokens_are_weighted_by_the_fragments_shares() -> None:
    state = state_of(shares=(0.5, 0.25, 0.125, 0.125))
    state.fragment_tokens = [1000, 400, 80, 0]
    assert state.merged_tokens == 610.0


@pytest.mark.parametrize(
    ("seconds", "quorum", "slowest"),
    [
        ([3.0, 1.0, 2.0], 1, 1.0),
        ([3.0, 1.0, 2.0], 2, 2.0),
        ([3.0, 1.0, None], 3, 3.0),
        ([None, None, None], 2, 0.0),
    ],
)
def test_a_step_is_that_of_the_slowest_that_the_quorum_needs(
    seconds: list[float | None], quorum: int, slowest: float
) -> None:
    state = state_of(4, quorum=quorum)
    for index, one in enumerate(seconds):
        state.learners[name(index)].pace = pace(one)
    stalled = state.learners[name(3)]
    stalled.state, stalled.pace = LearnerState.STALLED, pace(0.125)
    state.roster.gather()
    assert state.quorum_step_seconds == slowest


def test_a_step_that_is_shorter_than_it_can_be_counts_as_long_as_that() -> None:
    state = state_of(1)
    state.learners[name(0)].pace = pace(0.02)
    state.learners[name(0)].credit.least_step_seconds = 0.4
    state.roster.gather()
    assert state.quorum_step_seconds == 0.4


@pytest.mark.parametrize(
    ("changes", "ready"),
    [
        ({}, True),
        ({"state": LearnerState.STALLED}, False),
        ({"held": 5, "merged_into": 5}, True),
        ({"held": 5, "merged_into": 6}, False),
        ({"held": 4, "merged_into": 3}, True),  # one behind, as far as the job allows
        ({"held": 3, "merged_into": 3}, False),
        ({"step": 21}, True),
        ({"step": 20}, False),
    ],
)
def test_who_has_made_a_step_on_what_can_still_be_merged_is_ready(changes: dict[str, Any], *, ready: bool) -> None:
    state = state_of()
    record = state.learners[name(0)]
    chosen: dict[str, Any] = {"state": LearnerState.TRAINING, "held": 5, "merged_into": 5, "step": 25} | changes
    state.versions[1], record.received_steps[1] = 5, 20
    record.state, record.versions[1], record.merged_into[1], record.step = chosen.values()
    assert state.is_ready(record, 1) is ready


@pytest.mark.parametrize(("received", "waits"), [([20, 15, 24, 18], True), ([20, 16, 24, 18], False), ([], False)])
def test_the_bound_counts_from_the_fragment_that_was_received_first(received: list[int], *, waits: bool) -> None:
    state = state_of(max_staleness_steps=10)
    record = state.learners[name(0)]
    record.step, record.received_steps = 25, received
    assert state.at_bound(record) is waits
