"""Which learner evaluates the model, when, and how an answer or its absence affects the next order."""

import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from diloco.core.account.time_class import TimeClass
from diloco.core.engine.actions import Action, AskFragment, CancelTimer, Evaluate, Fence, Finish, Merge, Note, SetTimer
from diloco.core.engine.engine import Engine, Progress
from diloco.core.engine.events import BudgetChanged, Evaluated, TimerFired
from diloco.core.engine.members import evaluation as completion
from diloco.core.engine.members.evaluation import EVALUATION_TIMER, FINAL_TIMER
from diloco.core.engine.records import LearnerRecord
from diloco.core.engine.rounds.averages import SizedSpread
from diloco.core.engine.snapshot import fresh
from diloco.spec.status.engine import LearnerState, Phase
from tests.support.engine_script import BEGIN, Script, name, of, only, options, started


def begun(learners: int = 1, **changes: Any) -> Script:
    """Every learner has the model, of one fragment, and the initial model is evaluated."""
    script = started(learners, **({"fragments": 1, "lease_seconds": 1000.0} | changes))
    script.evaluated()
    return script


def turn(script: Script, learners: int = 1, *, tokens: int = 100) -> list[Action]:
    """Every learner makes a step of this many tokens and sends it, and all of it is merged."""
    for index in range(learners):
        script.step(index, seconds=1.0 + index, tokens=tokens)
    merges = [merge for index in range(learners) for merge in of(script.push(index, 0, tokens=tokens), Merge)]
    return [action for merge in merges for action in script.merge_done(merge)]


def asked(script: Script) -> list[tuple[float, str]]:
    """When which learner was ordered to evaluate, from the second order on."""
    return [(at - BEGIN, action.learner) for at, action in script.log if isinstance(action, Evaluate)][1:]


# When ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "evaluated_at"),
    [(100, [0, 200, 400, 600]), (150, [0, 300, 450, 600, 900]), (250, [0, 250, 500, 750, 1000, 1250, 1500])],
)
def test_the_model_is_evaluated_once_in_every_so_many_tokens(tokens: int, evaluated_at: list[int]) -> None:
    script = begun(evaluate_every_tokens=200)
    for _ in range(6):
        for _order in of(turn(script, tokens=tokens), Evaluate):
            script.evaluated()
    orders = script.all(Evaluate)
    assert [order.tokens for order in orders] == evaluated_at
    assert [order.evaluation for order in orders] == list(range(len(orders)))
    assert orders[-1].reason == f"{orders[-1].tokens} tokens are merged; this learner is the fastest"


def test_an_evaluation_that_is_due_does_not_wait_for_rounds_under_way() -> None:
    script = begun(2, evaluate_every_tokens=100)
    script.step(0)
    script.step(1)
    script.push(0, 0)
    merge = only(script.push(1, 0), Merge)
    script.step(0)
    assert of(script.merge_done(merge, applied=False), Evaluate)


def test_an_evaluation_of_other_versions_counts_unless_it_is_the_final_one() -> None:
    script = begun(evaluate_every_tokens=100, budget_tokens=200)
    turn(script)
    assert not of(script.evaluated(1.5, exact=False), Note)
    turn(script)
    assert only(script.evaluated(1.25, exact=False), Note).reason == "it is not of exactly the final model"
    script.evaluated(1.0)
    assert [one.loss for one in script.view.evaluations] == [2.0, 1.5, 1.0]


# The end ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "phase"), [(300, "Complete"), (301, "Waiting")])
def test_a_complete_job_goes_on_only_with_a_larger_budget(budget: int, phase: str) -> None:
    script = begun(budget_tokens=300)
    turn(script, tokens=300)
    script.evaluated()
    assert script.view.phase == "Complete"
    again = script.restarted(replace(script.options, budget_tokens=budget))
    assert (again.view.phase, again.view.merged_tokens) == (phase, 300)


def budget(script: Script, tokens: int) -> list[Action]:
    """The budget is changed, with an evaluation at each half of it."""
    return script.do(BudgetChanged(tokens, tokens // 2))


def test_a_budget_that_is_raised_while_training_moves_end_and_evaluations() -> None:
    script = begun(evaluate_every_tokens=150, budget_tokens=300)
    assert only(budget(script, 1000), Note).reason == "1000 tokens, of which 0 are merged"
    assert script.engine.progress == Progress(0.0, 1000, 0)
    for _ in range(10):
        assert script.view.phase == "Training"
        for _order in of(turn(script), Evaluate):
            script.evaluated()
    assert script.view.complete
    assert [one.tokens for one in script.view.evaluations] == [0, 200, 500, 1000]


def test_a_budget_that_is_lowered_below_what_is_merged_ends_the_job() -> None:
    script = begun(budget_tokens=300)
    turn(script)
    assert only(budget(script, 99), Evaluate).final
    script.evaluated()
    assert (script.view.phase, script.view.phase_reason) == ("Complete", "99 tokens are merged")


def test_a_budget_that_is_raised_in_the_final_evaluation_goes_on() -> None:
    script = begun(2, budget_tokens=200, evaluate_every_tokens=10**6)
    turn(script, 2)
    for index in range(2):
        script.step(index, count=40)  # to the staleness bound: they wait
    raised = budget(script, 400)
    assert only(raised, CancelTimer).name == FINAL_TIMER
    assert {ask.learner for ask in of(raised, AskFragment)} == {name(0), name(1)}
    assert not of(script.evaluated(), Finish)
    turn(script, 2)
    assert script.view.phase == "Evaluating"
    script.evaluated()
    assert of(script.evaluated(), Finish)
    assert [(one.tokens, one.final) for one in script.view.evaluations] == [(0, False), (200, False), (400, True)]


def test_a_budget_raised_to_what_is_merged_leaves_the_final_evaluation() -> None:
    script = begun(budget_tokens=50)
    turn(script)
    assert [type(action) for action in budget(script, 100)] == [Note]
    assert of(script.evaluated(), Finish)


def test_a_budget_raised_after_the_end_changes_nothing_before_a_restart() -> None:
    script = begun(budget_tokens=100)
    turn(script)
    script.evaluated()
    assert budget(script, 200) == []
    assert script.view.complete
    again = script.restarted(replace(script.options, budget_tokens=200))
    assert (again.view.phase, again.view.budget_tokens) == ("Waiting", 200)


def test_a_changed_budget_is_in_the_image_and_not_in_the_snapshot() -> None:
    script = begun(budget_tokens=100)
    budget(script, 200)
    whole = json.loads(json.dumps(script.engine.image()))
    assert Engine.from_image(script.options, 1, whole).progress.budget_tokens == 200
    assert script.restarted(replace(script.options, budget_tokens=150)).view.budget_tokens == 150


def test_a_budget_is_merged_with_its_last_token() -> None:
    script = begun(budget_tokens=300)
    turn(script)
    turn(script, tokens=199)
    assert script.view.phase == "Training"
    actions = turn(script, tokens=1)
    view = script.view
    assert (view.phase, view.phase_reason) == ("Evaluating", "300 tokens are merged")
    assert only(actions, Evaluate).reason == "the final model"
    timers = {timer.name: timer.at - script.now for timer in of(actions, SetTimer)}
    assert (timers[FINAL_TIMER], timers[EVALUATION_TIMER]) == (180.0, 60.0)
    actions = script.evaluated()
    finish = only(actions, Finish)
    assert (finish.complete, finish.reason) == (True, "300 tokens are merged")
    assert {timer.name for timer in of(actions, CancelTimer)} == {EVALUATION_TIMER, FINAL_TIMER}
    view = script.view
    assert (view.phase, view.phase_reason, view.complete) == ("Complete", "300 tokens are merged", True)


def test_the_final_model_is_evaluated_while_another_evaluation_runs() -> None:
    script = begun(2, evaluate_every_tokens=200, budget_tokens=400)
    turn(script, 2)
    before = script.all(Evaluate)[-1]
    final = only(turn(script, 2), Evaluate)
    assert before.learner == final.learner, "which did not fail"
    assert (before.final, final.final) == (False, True)
    late = script.do(Evaluated(before.learner, before.incarnation, before.evaluation, 9.0, exact=True))
    assert only(late, Note).reason == "evaluation 1 is no longer expected"
    script.evaluated()
    assert of(script.evaluated(), Finish)


def test_a_missing_final_evaluation_is_asked_of_others_three_times() -> None:
    script = begun(2, budget_tokens=200)
    turn(script, 2)
    script.wait(600.0)
    assert asked(script) == [(0.0, name(0)), (60.0, name(1)), (120.0, name(0))]
    ((finished_at, finish),) = [(at - BEGIN, action) for at, action in script.log if isinstance(action, Finish)]
    assert (finished_at, finish.complete) == (180.0, True)
    assert finish.reason == "200 tokens are merged; no learner evaluated the final model in time"


def test_who_cannot_evaluate_the_final_model_is_asked_after_all_others() -> None:
    script = begun(3, budget_tokens=300)
    turn(script, 3)
    for _ in range(4):
        script.evaluated(exact=False)
    assert [who for _, who in asked(script)] == [name(0), name(1), name(2), name(0), name(1)]
    assert of(script.evaluated(), Finish)


def test_who_ends_in_the_final_evaluation_is_asked_after_all_others() -> None:
    script = begun(3, budget_tokens=300)
    turn(script, 3)
    script.rejoin(0, "restarted")
    script.rejoin(1, "restarted")
    assert [who for _, who in asked(script)] == [name(0), name(1), name(2)]


def test_a_learner_that_comes_back_evaluates_the_final_model() -> None:
    script = begun(budget_tokens=20)
    script.step(0)
    merge = only(script.push(0, 0), Merge)
    script.leave(0)
    script.merge_done(merge)
    assert only(script.begin(0, "restarted"), Evaluate).final


def test_the_final_evaluation_waits_for_the_merges_that_run() -> None:
    script = begun(budget_tokens=30, fragments=4)
    merges = []
    for fragment in (0, 1):
        script.step(0)
        merges.append(only(script.push(0, fragment, steps=1), Merge))
    script.merge_done(merges[0])
    evaluate = only(script.merge_done(merges[1]), Evaluate)
    assert (evaluate.final, evaluate.versions) == (True, (1, 1, 0, 0))
    assert [order.final for order in script.all(Evaluate)] == [False, True]


def test_timers_of_an_evaluation_that_is_over_change_nothing() -> None:
    script = begun()
    for timer in (FINAL_TIMER, EVALUATION_TIMER):
        assert script.do(TimerFired(timer)) == []
    assert script.view.phase == "Training"


def test_a_timer_of_another_kind_does_not_end_an_evaluation() -> None:
    script = begun(budget_tokens=100)
    turn(script)
    assert script.do(TimerFired("of another kind")) == []
    assert of(script.evaluated(), Finish)


@pytest.mark.parametrize(("minimum", "lost_until_it_fails"), [(0, 3), (1, 3), (2, 2), (3, 1), (4, 1)])
def test_a_job_fails_as_soon_as_too_few_learners_are_left(minimum: int, lost_until_it_fails: int) -> None:
    script = begun(3, max_restarts=0, minimum_learners=minimum)
    for lost in range(1, lost_until_it_fails + 1):
        assert not script.view.finished
        script.join(lost - 1, "another")
        assert script.view.finished == (lost == lost_until_it_fails)
    finish = script.all(Finish)[0]
    view = script.view
    assert (view.phase, view.phase_reason, finish.complete) == ("Failed", finish.reason, False)
    assert f"; {3 - lost_until_it_fails} learner(s) left, failurePolicy.minimumLearners is {minimum}" in finish.reason
    assert finish.reason.startswith(", ".join(name(index) for index in range(lost_until_it_fails)) + " given up")


# Who ----------------------------------------------------------------------------------------------------------------


def chosen(*records: LearnerRecord, **state: Collection[str]) -> str:
    """Which of these learners evaluates."""
    engine = fresh(options(0), 1)
    engine.phase = Phase.TRAINING
    engine.learners = {record.id: record for record in records}
    engine.roster.gather()
    for field, value in state.items():
        setattr(engine, field, value)
    return only(completion.advance(engine, 0.0), Evaluate).learner


def trains(who: str, step_seconds: float | None, answer_seconds: float | None = None, **other: Any) -> LearnerRecord:
    record = LearnerRecord(who, LearnerState.TRAINING, turn_steps=[0] * 4)
    if step_seconds is not None:
        record.pace.add(step_seconds)
    record.answer_seconds = SizedSpread(answer_seconds)
    return replace(record, **other)


@pytest.mark.parametrize(
    ("slow", "fast"),
    [
        (trains("a", 2.0), trains("b", 1.0)),
        (trains("a", 1.0, 1.5), trains("b", 2.0, 0.25)),  # until it has the model, and has evaluated it
        (trains("a", 1.0, 0.5), trains("b", 1.25)),  # without a measured answer
        (trains("a", None), trains("b", 9.0)),
        (trains("a", 1.0, missed_since=1.0), trains("b", 9.0)),
        (trains("a", 1.0, state=LearnerState.STALLED), trains("b", 9.0, missed_since=1.0)),
        (trains("a", 1.0, state=LearnerState.LOADING), trains("b", 9.0, state=LearnerState.STALLED)),
        (trains("a", 1.0, state=LearnerState.ABSENT), trains("b", 9.0)),
        (trains("b", 1.0), trains("a", 1.0)),
    ],
)
def test_the_learner_that_will_have_evaluated_first_is_told_to(slow: LearnerRecord, fast: LearnerRecord) -> None:
    assert chosen(slow, fast) == fast.id


def test_doubted_learners_come_after_those_that_did_not_answer() -> None:
    fast, slow, stalled = trains("a", 1.0), trains("b", 2.0), trains("c", 3.0, state=LearnerState.STALLED)
    assert chosen(fast, slow, did_not_evaluate=["a"]) == "b"
    assert chosen(fast, stalled, did_not_evaluate=["a"]) == "c"
    assert chosen(fast, stalled, did_not_evaluate=["c"], doubted_learners={"a"}) == "c"
    assert chosen(fast, slow, did_not_evaluate=["b", "a"]) == "b", "longest ago"


def test_whoever_was_silent_is_not_asked_again_while_others_answer() -> None:
    script = begun(2, evaluate_every_tokens=200)
    turn(script, 2)
    script.wait(60.0)
    script.evaluated()
    turn(script, 2)
    assert asked(script) == [(0.0, name(0)), (60.0, name(1)), (60.0, name(1))]
    script.evaluated()
    again = script.restarted()
    assert again.state.silent_evaluators == [name(0)]


def test_whoever_was_silent_and_answers_is_asked_as_before() -> None:
    script = begun(2, evaluate_every_tokens=200)
    turn(script, 2)
    script.wait(60.0)
    script.leave(1)
    assert asked(script)[-1] == (60.0, name(0))
    script.evaluated()
    assert script.state.silent_evaluators == []


def limit(script: Script) -> float:
    """How long the evaluation that was ordered last may take."""
    ((at, timer),) = [
        (at, one) for at, one in script.log if isinstance(one, SetTimer) and one.name == EVALUATION_TIMER
    ][-1:]
    return timer.at - at


def test_an_evaluation_may_take_some_times_as_long_as_others_did() -> None:
    script = begun(2, evaluate_every_tokens=200, startup_seconds=600.0)
    assert limit(script) == 600.0, "of the first"
    turn(script, 2)
    assert limit(script) == 60.0
    script.wait(40.0)
    script.evaluated()
    script.state.evaluation_seconds = {name(0): 40.0}
    turn(script, 2)
    assert limit(script) == pytest.approx(160.0 + 4 * (script.state.learners[name(0)].answer_seconds.mean or 0.0))
    script.wait(limit(script))
    assert asked(script)[-1][1] == name(1)
    assert limit(script) == 600.0, "it is twice as slow, and may take twice as long as one that did not answer"


def test_a_learner_silent_at_the_end_does_not_make_the_end_wait() -> None:
    script = started(2, fragments=1, lease_seconds=1000.0, startup_seconds=600.0, budget_tokens=200)
    script.wait(60.0)
    turn(script, 2)
    assert [order.learner for order in script.all(Evaluate)] == [name(0), name(1)]


# The final one, by two ----------------------------------------------------------------------------------------------


def ending(learners: int, **changes: Any) -> Script:
    script = begun(learners, budget_tokens=100 * learners, **changes)
    turn(script, learners)
    return script


def finals(script: Script) -> list[tuple[str, float | None, bool]]:
    return [(one.learner, one.loss, one.doubted) for one in script.view.evaluations if one.final]


def test_a_second_learner_confirms_the_final_loss() -> None:
    script = ending(3)
    assert not of(script.evaluated(2.0), Finish)
    assert script.all(Evaluate)[-1].learner == name(1)
    assert of(script.evaluated(2.03), Finish)
    assert finals(script) == [(name(0), 2.0, False)]
    assert script.view.phase_reason == "300 tokens are merged"


@pytest.mark.parametrize(("first", "second"), [(0.3, 2.0), (2.0, 0.3), (None, 2.0), (2.0, None)])
def test_of_two_that_disagree_the_higher_counts_and_both_are_named(first: float | None, second: float | None) -> None:
    script = ending(2)
    script.evaluated(float("nan") if first is None else first)
    assert of(script.evaluated(float("nan") if second is None else second), Finish)
    assert finals(script) == [(name(0), first, first != 2.0), (name(1), second, second != 2.0)]
    assert script.view.eval_loss == 2.0
    shown = ["2" if loss == 2.0 else "no number" if loss is None else "0.3" for loss in (first, second)]
    assert script.view.phase_reason == (
        "200 tokens are merged; learners disagree on the loss of the final model: "
        f"{shown[0]} by {name(0)} and {shown[1]} by {name(1)}; the highest counts"
    )


def test_if_two_disagree_a_third_decides() -> None:
    script = ending(3)
    script.evaluated(0.3)
    script.evaluated(2.0)
    assert of(script.evaluated(2.0), Finish)
    assert finals(script) == [(name(0), 0.3, True), (name(1), 2.0, False)]
    assert script.view.phase_reason.endswith(f"; {name(2)} found 2 too")


def test_a_second_learner_that_is_silent_costs_its_time_once() -> None:
    script = ending(2)
    script.evaluated(2.0)
    script.wait(60.0)
    assert script.view.complete
    assert finals(script) == [(name(0), 2.0, False)]


def test_a_second_learner_that_was_silent_before_is_not_waited_for() -> None:
    script = begun(2, budget_tokens=200)
    script.state.silent_evaluators = [name(1)]
    turn(script, 2)
    assert of(script.evaluated(2.0), Finish)


def test_a_second_learner_that_leaves_is_not_waited_for() -> None:
    script = ending(2)
    script.evaluated(2.0)
    assert of(script.leave(1), Finish)


def test_an_evaluation_whose_learner_has_gone_is_not_waited_for() -> None:
    script = started(2)
    (first,) = script.all(Evaluate)
    again = only(script.leave(0), Evaluate)
    assert (first.learner, again.learner) == (name(0), name(1))
    script.do(Evaluated(first.learner, first.incarnation, first.evaluation, 2.0, exact=True))  # too late
    assert not script.view.evaluations
    script.evaluated()
    assert len(script.view.evaluations) == 1


def test_an_answer_keeps_the_lease_of_whoever_evaluates() -> None:
    script = started(1)
    script.wait(59.0)
    script.evaluated()
    script.wait(59.0)
    assert not script.all(Fence)


@pytest.mark.parametrize("by_failing", [True, False])
def test_time_at_an_evaluation_that_the_end_cuts_short_stays_what_it_was(by_failing: bool) -> None:
    script = begun(2, max_restarts=0, minimum_learners=2, budget_tokens=200)
    turn(script, 2)
    script.wait(30.0 if by_failing else 179.0)
    before = script.learner(0).time_seconds
    if by_failing:
        script.join(1, "another")
    else:
        script.wait(1.0)
    view = script.view
    assert view.finished
    more = 0.0 if by_failing else 1.0
    assert view.learners[0].time_seconds == {**before, TimeClass.OVERHEAD: before[TimeClass.OVERHEAD] + more}
