"""Values that are derived from the engine's state."""

from dataclasses import fields
from typing import Any

import pytest

from diloco.core import snapshot
from diloco.core.averages import MovingAverage, SizedSpread
from diloco.core.events import FragmentArrived
from diloco.core.options import Rules
from diloco.core.state import EngineState, EvaluationRecord, LearnerRecord, Return, Round
from diloco.spec.syncer_status import LearnerState, Phase
from tests.support.engine_script import Script, name, options

PRESENT = {"Loading", "Training", "Stalled", "Quarantined"}


def state_of(learners: int = 1, **changes: Any) -> EngineState:
    """Learners that train, all planned."""
    state = snapshot.fresh(options(learners, **changes), 1)
    for record in state.learners.values():
        record.state = LearnerState.TRAINING
        record.incarnation = 1_000_001
        record.versions, record.merged_into = [0] * 4, [0] * 4
        record.received_steps = [0] * 4
    return state


def trains(**changes: Any) -> LearnerRecord:
    return LearnerRecord("one", state=LearnerState.TRAINING, **changes)


@pytest.mark.parametrize(
    "new",
    [
        LearnerRecord("one"),
        Round(0, 0, 0, opened_at=0.0),
        Return(0, 0.0, 0.0, 0, set()),
        EvaluationRecord(0, 0.0, 0.0, final=False),
    ],
)
def test_every_count_begins_at_nothing(new: object) -> None:
    values = [getattr(new, one.name) for one in fields(new)]  # type: ignore[arg-type]  # each of them is a dataclass
    numbers = [value for value in values if isinstance(value, int | float)]
    assert numbers
    assert not any(numbers)


def test_a_job_begins_with_nothing_done() -> None:
    state = snapshot.fresh(options(1), 1)
    assert (state.launched, state.merges, state.evaluations_ordered, state.next_evaluation_tokens) == (0, 0, 0, 0)
    assert (state.elapsed_seconds, state.elapsed(1000.0), state.merged_tokens) == (0.0, 0.0, 0.0)
    assert state.phase == Phase.WAITING


def test_incarnations_count_from_the_epochs_million() -> None:
    first, later = Script(options(2)), Script(options(2), epoch=7)
    for script in (first, later):
        script.start(0, 1)
    assert [*first.incarnations.values(), *later.incarnations.values()] == [1_000_001, 1_000_002, 7_000_001, 7_000_002]


@pytest.mark.parametrize(("since", "seconds"), [(None, 5.0), (90.0, 15.0)])
def test_time_is_given_and_elapses_while_it_counts(since: float | None, seconds: float) -> None:
    assert LearnerRecord("one", allotted_seconds=5.0, allotted_since=since).allotted(100.0) == seconds
    state = state_of()
    state.elapsed_seconds, state.elapsed_since = 5.0, since
    assert state.elapsed(100.0) == seconds


@pytest.mark.parametrize("where", list(LearnerState))
def test_who_loads_is_in_and_who_has_the_model_works(where: LearnerState) -> None:
    record = LearnerRecord("one", state=where)
    assert record.present is (where.value in PRESENT)
    assert record.working is (where.value in PRESENT - {"Loading", "Quarantined"})


@pytest.mark.parametrize(
    ("record", "tokens_per_second"),
    [
        (trains(step=1, tokens=100, step_seconds=MovingAverage(0.5)), 200.0),
        (trains(step=10, tokens=500, step_seconds=MovingAverage(2.0)), 25.0),
        (trains(step=10, tokens=500), 0.0),  # of a process that has not reported yet
        (trains(step=10, tokens=500, step_seconds=MovingAverage(0.0)), 0.0),
        (trains(), 0.0),
    ],
)
def test_speed_is_the_tokens_of_a_step_over_its_seconds(record: LearnerRecord, tokens_per_second: float) -> None:
    assert record.tokens_per_second == tokens_per_second


def test_whoever_brings_a_fragment_or_declines_has_answered() -> None:
    arrived = {"a": FragmentArrived("a", 1, 0, 1, 1, 0, 1, 1, 1, "0" * 32)}
    current = Round(1, 0, 1, 0.0, arrived=arrived, declined={"b", "c", "d"})
    assert [current.answered(learner) for learner in "abz"] == [True, True, False]
    assert current.answers == 4


@pytest.mark.parametrize(
    ("applied", "awaited", "in_flight"), [(1, {"a"}, True), (2, {"a"}, False), (1, set(), False), (3, {"a"}, False)]
)
def test_a_result_is_in_flight_until_the_quorum_has_it_or_none_is_awaited(
    applied: int, awaited: set[str], *, in_flight: bool
) -> None:
    assert Return(1, 0.0, 0.0, 2, awaited, applied=applied).in_flight is in_flight


def test_merged_tokens_are_weighted_by_the_fragments_shares() -> None:
    state = state_of(shares=(0.5, 0.25, 0.125, 0.125))
    state.fragment_tokens = [1000, 400, 80, 0]
    assert state.merged_tokens == 610.0


@pytest.mark.parametrize(
    ("learners", "wanted", "given_up", "rules", "quorum"),
    [
        (3, 3, 0, Rules.GUARDED, 3),
        (3, 3, 1, Rules.GUARDED, 2),
        (3, 2, 1, Rules.GUARDED, 2),
        (3, 2, 2, Rules.GUARDED, 1),
        (3, 3, 3, Rules.GUARDED, 1),
        (3, 1, 0, Rules.GUARDED, 1),
        (3, 3, 2, Rules.READY, 3),
    ],
)
def test_the_quorum_is_what_the_job_wants_or_those_that_are_left(
    learners: int, wanted: int, given_up: int, rules: Rules, quorum: int
) -> None:
    state = state_of(learners, quorum=wanted, rules=rules)
    for index in range(given_up):
        state.learners[name(index)].state = LearnerState.GIVEN_UP
    assert state.quorum == quorum


def test_one_that_is_away_and_no_longer_planned_is_not_left() -> None:
    state = state_of(3, quorum=3)
    state.planned = frozenset({name(0)})
    assert state.quorum == 3, "all are in"
    state.learners[name(2)].state = LearnerState.ABSENT
    assert state.quorum == 2
    state.learners[name(0)].state = LearnerState.ABSENT
    assert state.quorum == 2, "it is planned"
    assert [record.id for record in state.counted_learners] == [name(0), name(1)]


def test_a_usual_answer_takes_as_long_as_the_fragments_size_says() -> None:
    state = state_of(shares=(0.5, 0.25, 0.125, 0.125))
    record = state.learners[name(0)]
    assert state.usual_answer_seconds(record, 0) is None
    record.answer_seconds = SizedSpread(mean=3.0, slope=1.0)
    assert [state.usual_answer_seconds(record, fragment) for fragment in range(4)] == [4.0, 3.0, 2.5, 2.5]


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
        state.learners[name(index)].step_seconds = MovingAverage(one)
    stalled = state.learners[name(3)]
    stalled.state, stalled.step_seconds = LearnerState.STALLED, MovingAverage(0.125)
    assert state.quorum_step_seconds == slowest


@pytest.mark.parametrize("phase", list(Phase))
def test_a_job_is_over_when_it_is_complete_or_has_failed(phase: Phase) -> None:
    state = state_of()
    state.phase = phase
    assert state.finished is (phase in {"Complete", "Failed"})


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


@pytest.mark.parametrize(
    ("step", "where", "waits"),
    [
        (25, LearnerState.TRAINING, True),
        (24, LearnerState.TRAINING, False),
        (25, LearnerState.STALLED, False),
    ],
)
def test_the_bound_counts_from_the_fragment_that_was_received_first(
    step: int, where: LearnerState, *, waits: bool
) -> None:
    state = state_of(max_staleness_steps=10)
    record = state.learners[name(0)]
    record.state, record.step, record.received_steps = where, step, [20, 15, 24, 18]
    assert state.waits_at_bound(record) is waits


def test_one_that_has_received_nothing_waits_at_no_bound() -> None:
    record = trains(step=100)
    assert not state_of(max_staleness_steps=10).waits_at_bound(record)


def test_only_the_present_incarnation_speaks_for_a_learner() -> None:
    state = state_of(2)
    record = state.learners[name(0)]
    assert state.current(name(0), 1_000_001) is record
    assert state.current(name(0), 1_000_002) is None
    assert state.current("nobody/at/0", 1_000_001) is None
    record.state = LearnerState.ABSENT
    assert state.current(name(0), 1_000_001) is None
