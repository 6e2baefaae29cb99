"""Evaluations that are not credible, and their confirmation by a second learner."""

import math
from typing import Any

import pytest

from diloco.core.engine.actions import Evaluate, Finish, Merge, Note
from diloco.core.engine.events import StepReported
from tests.support.engine_script import TOKENS_PER_STEP, Script, name, of, only, started


def training(learners: int, losses: dict[int, float] | None = None, **changes: Any) -> Script:
    """All learners train, with a loss of 4 or more; learner 0 is the fastest and has been ordered to evaluate."""
    script = started(learners, **changes)
    for index in range(learners):
        script.steps[index] += 1
        speed, loss = 1.0 + index, (losses or {}).get(index, 4.0 + index)
        script.do(StepReported(name(index), script.incarnations[index], 1, TOKENS_PER_STEP, speed, loss, 1))
    return script


def asked(script: Script) -> list[str]:
    return [order.learner for order in script.all(Evaluate)]


def shown(script: Script) -> list[tuple[float | None, bool]]:
    return [(one.loss, one.doubted) for one in script.view.evaluations]


@pytest.mark.parametrize("learners", [2, 3])
@pytest.mark.parametrize("loss", [0.5, 0.51, 40.0])
def test_a_plausible_evaluation_is_believed_and_nobody_else_is_asked(learners: int, loss: float) -> None:
    script = training(learners)
    assert not of(script.evaluated(loss), Note)
    assert asked(script) == [name(0)]
    assert shown(script) == [(loss, False)]


@pytest.mark.parametrize("loss", [0.001, 0.49, -1.0, math.nan, -math.inf])
def test_a_doubted_evaluation_is_shown_as_one_and_another_learner_is_asked(loss: float) -> None:
    script = training(3)
    note = only(script.evaluated(loss), Note)
    assert (note.kind, note.learner) == ("EvaluationDoubted", name(0))
    assert "the other learners train at 5 or more" in note.reason
    assert asked(script) == [name(0), name(1)]
    script.evaluated(3.9)
    assert [doubted for _, doubted in shown(script)] == [True, False]
    assert asked(script) == [name(0), name(1)]


def test_one_that_another_learner_confirms_is_believed() -> None:
    script = training(2)
    script.evaluated(0.3)
    note = only(script.evaluated(0.303), Note)
    assert note.kind == "EvaluationConfirmed"
    assert shown(script) == [(0.3, False), (0.303, False)]


@pytest.mark.parametrize(
    ("first", "second", "agree"),
    [
        (0.3125, 0.3187, True),
        (0.3125, 0.3063, True),
        (0.3125, 0.3188, False),
        (0.3125, 0.3062, False),
        (0.3125, -0.3125, False),
        (-2.0, -2.03, True),
        (0.0, 0.0, True),
        (math.nan, math.nan, True),
        (-math.inf, -math.inf, True),
        (-math.inf, math.nan, True),  # neither is a number
        (math.nan, 0.3, False),
        (0.3, math.nan, False),
        (-math.inf, 0.3, False),
    ],
)
def test_two_evaluations_agree_up_to_two_percent(first: float, second: float, agree: bool) -> None:
    script = training(2)
    script.evaluated(first)
    script.evaluated(second)
    assert [doubted for _, doubted in shown(script)] == ([False, False] if agree else [True, True])
    assert asked(script) == [name(0), name(1)]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_the_losses_of_learners_that_have_diverged_are_no_measure(loss: float) -> None:
    script = training(3, {1: loss})
    note = only(script.evaluated(0.001), Note)
    assert "the other learners train at 6 or more" in note.reason
    alone = training(2, {1: loss})
    alone.evaluated(0.001)
    assert shown(alone) == [(0.001, False)]


def test_the_loss_of_a_learner_that_has_left_is_no_measure() -> None:
    script = training(3)
    script.leave(1)
    note = only(script.evaluated(0.55), Note)
    assert "its loss of 0.55 is not credible: the other learners train at 6 or more" in note.reason
    assert asked(script) == [name(0), name(2)]


def test_a_learner_that_has_not_trained_yet_is_no_measure() -> None:
    script = started(2)
    script.step(0)
    script.evaluated(0.001)
    assert shown(script) == [(0.001, False)]


def test_once_a_doubt_is_settled_the_fastest_is_asked_again() -> None:
    script = training(2, evaluate_every_tokens=200)
    script.evaluated(0.001)
    script.evaluated(3.9)
    for fragment in range(4):
        for index in (0, 1) if fragment else ():
            script.step(index, seconds=1.0 + index)
        script.push(0, fragment)
        script.merge_done(only(script.push(1, fragment), Merge))
    assert asked(script) == [name(0), name(1), name(0)]


def test_no_learner_confirms_itself_once_the_others_have_gone() -> None:
    script = training(2)
    script.evaluated(0.3)
    script.leave(1)
    assert asked(script) == [name(0), name(1), name(0)]
    note = only(script.evaluated(0.3), Note)
    assert (note.kind, note.learner) == ("EvaluationDoubted", name(0))
    assert shown(script) == [(0.3, True), (0.3, True)]


def test_a_final_evaluation_in_doubt_does_not_end_the_job() -> None:
    script = training(2, budget_tokens=1)
    script.evaluated(4.0)
    script.push(0, 0)
    script.merge_done(only(script.push(1, 0), Merge))
    assert script.all(Evaluate)[-1].final
    assert not of(script.evaluated(0.001), Finish)
    assert asked(script)[-2:] == [name(0), name(1)]
    finish = only(script.evaluated(4.0), Finish)
    assert finish.complete
    assert [doubted for _, doubted in shown(script)] == [False, True, False]
