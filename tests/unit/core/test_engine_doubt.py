"""Evaluations that are not credible, and their confirmation by a second learner."""

import math
from typing import Any

import pytest

from diloco.core.actions import Action, Evaluate, Finish, Merge, Note
from diloco.core.events import Evaluated, StepReported
from diloco.core.options import Rules
from tests.support.engine_script import TOKENS_PER_STEP, Script, name, of, options


def training(learners: int, losses: dict[int, float] | None = None, **changes: Any) -> Script:
    """All learners train, with a loss of 4 or more; learner 0 is the fastest and has been ordered to evaluate."""
    script = Script(options(learners, **changes))
    script.start(*range(learners))
    for index in range(learners):
        script.steps[index] += 1
        speed, loss = 1.0 + index, (losses or {}).get(index, 4.0 + index)
        script.do(StepReported(name(index), script.incarnations[index], 1, TOKENS_PER_STEP, speed, 0.0, loss, 1))
    return script


def answer(script: Script, loss: float) -> list[Action]:
    """The learner with the latest order answers."""
    order = script.all(Evaluate)[-1]
    return script.do(Evaluated(order.learner, order.incarnation, order.evaluation, loss, exact=True))


def asked(script: Script) -> list[str]:
    return [order.learner for order in script.all(Evaluate)]


def shown(script: Script) -> list[tuple[float, bool]]:
    return [(one.loss, one.doubted) for one in script.engine.view(script.now).evaluations]


@pytest.mark.parametrize("learners", [2, 3])
@pytest.mark.parametrize("loss", [0.5, 0.51, 40.0])
def test_a_plausible_evaluation_is_believed_and_nobody_else_is_asked(learners: int, loss: float) -> None:
    script = training(learners)
    assert not of(answer(script, loss), Note)
    assert asked(script) == [name(0)]
    assert shown(script) == [(loss, False)]


@pytest.mark.parametrize("loss", [0.001, 0.49, -1.0, math.nan, -math.inf])
def test_a_doubted_evaluation_is_shown_as_one_and_another_learner_is_asked(loss: float) -> None:
    script = training(3)
    (note,) = of(answer(script, loss), Note)
    assert (note.subject, note.learner) == ("EvaluationDoubted", name(0))
    assert "the other learners train at 5 or more" in note.reason
    assert asked(script) == [name(0), name(1)]
    answer(script, 3.9)
    assert [doubted for _, doubted in shown(script)] == [True, False]
    assert asked(script) == [name(0), name(1)]


def test_one_that_another_learner_confirms_is_believed() -> None:
    script = training(2)
    answer(script, 0.3)
    (note,) = of(answer(script, 0.312), Note)
    assert note.subject == "EvaluationConfirmed"
    assert shown(script) == [(0.3, False), (0.312, False)]


@pytest.mark.parametrize(
    ("first", "second", "agree"),
    [
        (0.3125, 0.328125, True),  # exactly 5 % apart
        (0.3125, 0.296875, True),
        (0.3125, 0.33, False),
        (0.3125, 0.295, False),
        (0.3125, -0.3125, False),
        (-2.0, -2.05, True),
        (0.0, 0.0, True),
        (math.nan, math.nan, True),
        (-math.inf, -math.inf, True),
        (-math.inf, math.nan, False),
        (math.nan, 0.3, False),
        (0.3, math.nan, False),
        (-math.inf, 0.3, False),
    ],
)
def test_two_evaluations_agree_up_to_a_twentieth(first: float, second: float, agree: bool) -> None:
    script = training(2)
    answer(script, first)
    answer(script, second)
    assert [doubted for _, doubted in shown(script)] == ([False, False] if agree else [True, True])


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_the_losses_of_learners_that_have_diverged_are_no_measure(loss: float) -> None:
    script = training(3, {1: loss})
    (note,) = of(answer(script, 0.001), Note)
    assert "the other learners train at 6 or more" in note.reason
    alone = training(2, {1: loss})
    answer(alone, 0.001)
    assert shown(alone) == [(0.001, False)]


def test_the_loss_of_a_learner_that_has_left_is_no_measure() -> None:
    script = training(3)
    script.leave(1)
    (note,) = of(answer(script, 0.55), Note)
    assert "its loss of 0.55 is not credible: the other learners train at 6 or more" in note.reason
    assert asked(script) == [name(0), name(2)]


def test_a_learner_that_has_not_trained_yet_is_no_measure() -> None:
    script = Script(options(2))
    script.start(0, 1)
    script.step(0)
    answer(script, 0.001)
    assert shown(script) == [(0.001, False)]


def test_once_a_doubt_is_settled_the_fastest_is_asked_again() -> None:
    script = training(2, evaluate_every_tokens=200)
    answer(script, 0.001)
    answer(script, 3.9)
    for fragment in range(4):
        for index in (0, 1) if fragment else ():
            script.step(index, seconds=1.0 + index)
        script.push(0, fragment)
        for merge in of(script.push(1, fragment), Merge):
            script.merge_done(merge)
    assert asked(script) == [name(0), name(1), name(0)]


def test_where_all_are_in_doubt_the_job_goes_on_and_says_so() -> None:
    script = training(2)
    answer(script, 0.3)
    answer(script, 0.32)
    assert asked(script) == [name(0), name(1)]
    assert shown(script) == [(0.3, True), (0.32, True)]


def test_no_learner_confirms_itself_once_the_others_have_gone() -> None:
    script = training(2)
    answer(script, 0.3)
    script.leave(1)
    assert asked(script) == [name(0), name(1), name(0)]
    (note,) = of(answer(script, 0.3), Note)
    assert (note.subject, note.learner) == ("EvaluationDoubted", name(0))
    assert shown(script) == [(0.3, True), (0.3, True)]


def test_a_learner_that_is_alone_is_believed() -> None:
    script = training(1)
    answer(script, 0.001)
    assert shown(script) == [(0.001, False)]


def test_a_final_evaluation_in_doubt_does_not_end_the_job() -> None:
    script = training(2, budget_tokens=1)
    answer(script, 4.0)
    script.push(0, 0)
    for merge in of(script.push(1, 0), Merge):
        script.merge_done(merge)
    assert script.all(Evaluate)[-1].final
    assert not of(answer(script, 0.001), Finish)
    assert asked(script)[-2:] == [name(0), name(1)]
    (finish,) = of(answer(script, 4.0), Finish)
    assert finish.complete
    assert [doubted for _, doubted in shown(script)] == [False, True, False]


def test_a_doubt_is_kept_over_a_restart() -> None:
    script = training(2)
    answer(script, 0.001)
    again = Script(options(2), epoch=2, saved=script.engine.snapshot(script.now))
    assert shown(again) == [(0.001, True)]


def test_tapes_of_before_believe_every_evaluation() -> None:
    script = training(2, rules=Rules.READY)
    answer(script, 0.001)
    assert asked(script) == [name(0)]
    assert shown(script) == [(0.001, False)]
