"""A state comes back whole, or at rest with every number of the job; what is no state is refused with the field."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from diloco.core.account.time_account import Account
from diloco.core.account.time_class import TimeClass
from diloco.core.account.time_spent import TimeSpent
from diloco.core.engine.actions import Evaluate
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import Evaluated, LearnerJoined, StepReported
from diloco.core.engine.members.credit import Credit
from diloco.core.engine.members.standing import Standing
from diloco.core.engine.records import LearnerRecord
from diloco.core.engine.rounds.averages import MovingAverage, StepAverage
from diloco.core.engine.snapshot import LaterSnapshotError, SnapshotError, check, fresh, restore, restore_whole, take
from diloco.core.engine.state import EngineState
from diloco.spec.status.engine import EvaluationStatus, LearnerState, Phase
from tests.support.engine_script import Script, name, options, started


def through_a_file(plain: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(plain))
    return read


def busy() -> Script:
    """Two learners with rounds under way."""
    script = started(2)
    for _ in range(6):
        script.step(0)
        script.step(1)
    script.push(0, 0)
    return script


class TestTheWholeState:
    def test_rounds_under_way_and_numbers_that_are_not_finite_come_back(self) -> None:
        script = busy()
        script.state.learners[name(0)].loss = math.inf
        again = Engine.from_image(script.options, 1, through_a_file(script.engine.image()))
        assert again._state == script.state
        assert again._state.rounds

    def test_the_same_state_is_written_in_the_same_order(self) -> None:
        planned = take(fresh(options(20), 1), 0.0)["planned"]
        assert planned == sorted(planned)
        assert len(planned) == 20

    def test_it_does_not_change_with_its_engine(self) -> None:
        script = busy()
        whole = script.engine.image()
        before = json.dumps(whole)
        script.step(0)
        script.push(1, 0)
        assert json.dumps(whole) == before

    def test_a_field_that_was_added_later_has_its_default(self) -> None:
        script = busy()
        whole = script.engine.image()
        for record in whole["learners"].values():
            del record["left_out_lately"]
        assert Engine.from_image(script.options, 1, whole)._state == script.state


def saved_state() -> EngineState:
    """At rest, each value unlike that of a job that has not begun."""
    state = fresh(options(2), 1)
    state.phase, state.phase_reason = Phase.FAILED, "too few are left"
    state.launched = 9
    state.versions, state.fragment_tokens = [3, 2, 1, 2], [3000, 2000, 1000, 2000]
    state.begun, state.confirmed, state.withheld = True, True, [4, 3, 2, 1]
    state.learners = {
        name(0): learner(name(0), LearnerState.ABSENT, left_cleanly=True),
        name(1): learner(name(1), LearnerState.GIVEN_UP, left_cleanly=False),
    }
    state.evaluations = [
        EvaluationStatus(900, 3.5, 12.0, final=False),
        EvaluationStatus(900, None, 12.0, final=True, doubted=True),
    ]
    state.evaluations_ordered, state.next_evaluation_tokens = 3, 7000
    state.elapsed_seconds = 30.0
    state.quorum_seconds, state.sync_seconds, state.merge_seconds = map(MovingAverage, (0.125, 0.25, 0.375))
    return state


def learner(who: str, state: LearnerState, *, left_cleanly: bool) -> LearnerRecord:
    settled = {TimeClass.MERGED: 12.0, TimeClass.LOST: 8.0}
    spent = TimeSpent(20.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, math.inf)
    return LearnerRecord(
        who,
        state,
        instance="process-0",
        superseded=["the-one-before"],
        joins=3,
        left_cleanly=left_cleanly,
        restarts=1,
        step=20,
        tokens=2000,
        data_position=40,
        loss=-math.inf,
        pace=StepAverage(3, 8.0, 16.0, 1600.0),
        earlier=StepAverage(2, 9.0, 9.0, 900.0),
        credit=Credit(0.25, 400.0, 200.0, 18.5, 1850.0, [1800.0, 1700.0, 1600.0, 1500.0]),
        pushed_bytes=4096,
        merged_tokens=1500.0,
        allotted_seconds=25.0,
        account=Account({TimeClass.AWAY: 5.0}, 20.0, 20, settled, 25.0, step=20, spent=spent),
        standing=Standing(
            reset_due=True, on_trial=True, merged_on_trial=4, resets=2, quarantines=1, quarantined_until=6.5, reason="x"
        ),
    )


def saved(**changes: Any) -> dict[str, Any]:
    return take(saved_state(), 0.0) | changes


class TestTheStateAtRest:
    def test_one_that_is_restored_and_taken_again_is_the_same(self) -> None:
        state = restore(options(2), 1, through_a_file(saved()))
        assert repr(state) == repr(saved_state())  # as text, since NaN differs from itself
        again = take(restore(options(2), 3, saved()), 1000.0)
        assert json.dumps(again, sort_keys=True) == json.dumps(saved(), sort_keys=True), "whenever it is taken"

    @pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
    def test_a_loss_that_is_no_number_is_restored(self, loss: float) -> None:
        script = started(1)
        order = script.all(Evaluate)[0]
        script.wait(1.0)
        script.do(StepReported(name(0), script.incarnations[0], 1, 100, 1.0, loss, 1))
        script.do(Evaluated(name(0), script.incarnations[0], order.evaluation, loss, exact=True))
        again = Script(options(1), epoch=2, saved=through_a_file(script.engine.snapshot(script.now)))
        assert again.view.evaluations[0].loss is None
        assert repr(again.engine._state.learners[name(0)].loss) == repr(loss)

    @pytest.mark.parametrize("phase", Phase)
    def test_a_job_that_was_over_stays_over_and_others_wait_for_learners(self, phase: Phase) -> None:
        state = restore(options(2, budget_tokens=0), 2, saved(phase=phase))
        if phase in (Phase.COMPLETE, Phase.FAILED):
            assert (state.phase, state.phase_reason) == (phase, "too few are left")
        else:
            waits = "the syncer has restarted; no learner has joined yet"
            assert (state.phase, state.phase_reason) == (Phase.WAITING, waits)

    def test_nobody_is_in_after_a_restart_and_who_was_given_up_stays_so(self) -> None:
        learners = restore(options(3), 2, saved()).learners
        assert [learners[name(index)].state for index in range(3)] == ["Absent", "GivenUp", "Absent"]

    def test_a_process_that_had_left_is_no_restart_after_two_of_the_syncer(self) -> None:
        state = restore(options(2), 2, saved(phase="Training"))
        script = Script(options(2), epoch=3, saved=take(state, 0.0))
        script.do(LearnerJoined(name(0), "another", (), 20, 40))
        assert script.learner(0).restarts == 1

    def test_a_job_that_has_not_begun_has_nothing(self) -> None:
        state = fresh(options(2), 1)
        assert state.versions == state.fragment_tokens == [0, 0, 0, 0]
        assert list(state.learners) == sorted(state.planned) == [name(0), name(1)]
        assert (state.overlap.least, state.overlap.most, state.overlap.allowed) == (2, 2, 2)
        assert fresh(options(2, overlap_limit=3), 1).overlap.most == 3


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda plain: plain.pop("overlap"), r"EngineState\.overlap is .*: Field required"),
        (lambda plain: plain.update(versions=[1]), r"EngineState\.versions: 1 fragments, the job has 4"),
        (lambda plain: plain.update(fragment_tokens=[]), r"EngineState\.fragment_tokens: 0 fragments"),
        (lambda plain: plain.update(withheld=[]), r"EngineState\.withheld: 0 fragments"),
        (lambda plain: plain.update(versions="many"), r"EngineState\.versions is 'many'"),
        (lambda plain: plain.update(launched=1.5), r"EngineState\.launched is 1\.5: "),
        (lambda plain: plain.update(phase="Dancing"), r"EngineState\.phase is 'Dancing'"),
        (lambda plain: plain.update(learners=[["a"]]), r"EngineState\.learners is \[\['a'\]\]"),
        (
            lambda plain: plain["learners"][name(0)].pop("id"),
            r"EngineState\.learners\.here/pool/0\.id is .*: Field",
        ),
    ],
)
def test_what_is_no_state_is_refused_with_the_field(change: Callable[[Any], None], text: str) -> None:
    for plain, read in ((busy().engine.image(), restore_whole), (saved(), restore)):
        change(plain)
        with pytest.raises(SnapshotError, match=text) as refused:
            read(options(2), 1, plain)
        assert not isinstance(refused.value, LaterSnapshotError)


@pytest.mark.parametrize("field", ["launched", "evaluations_ordered", "next_evaluation_tokens", "elapsed_seconds"])
@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_a_number_that_no_job_has_is_refused_with_the_field(field: str, value: int) -> None:
    with pytest.raises(SnapshotError, match=rf"EngineState\.{field} is .*: use a number from 0 to"):
        check(options(2), saved(**{field: value}))


@pytest.mark.parametrize("field", ["versions", "fragment_tokens", "withheld"])
@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_a_number_of_a_fragment_that_none_has_is_refused(field: str, value: int) -> None:
    with pytest.raises(SnapshotError, match=rf"EngineState\.{field} is .*: use a number from 0 to"):
        check(options(2), saved(**{field: [1, 2, value, 4]}))


@pytest.mark.parametrize(
    "field",
    ["joins", "restarts", "step", "tokens", "data_position", "pushed_bytes", "merged_tokens", "allotted_seconds"],
)
@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_a_number_of_a_learner_that_none_has_is_refused(field: str, value: int) -> None:
    plain = saved()
    plain["learners"][name(1)][field] = value
    with pytest.raises(SnapshotError, match=rf"EngineState\.learners\.here/pool/1\.{field} is .*: use a number"):
        check(options(2), plain)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_time_that_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(SnapshotError, match=rf"EngineState\.elapsed_seconds is {value}"):
        check(options(2), saved(elapsed_seconds=value))


@pytest.mark.parametrize("plain", [[], "text", {}, {"format": 2, "new": 1}, saved(surprise=1, versions="many")])
def test_a_state_of_another_version_is_told_from_one_that_is_spoilt(plain: Any) -> None:
    with pytest.raises(LaterSnapshotError, match=r"format is .*; this version of diloco reads 1|surprise is 1"):
        check(options(2), plain)
