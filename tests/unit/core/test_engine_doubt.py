"""Evaluations that are not to be believed, and the word of a second learner."""

import math

import pytest

from diloco.core.actions import Action, Evaluate, Finish, Merge, Note
from diloco.core.events import Evaluated, StepReported
from diloco.core.options import Rules
from tests.support.engine_script import TOKENS_PER_STEP, Script, name, of, options


def training(learners: int, *, budget_tokens: int = 10**9, rules: Rules = Rules.GUARDED) -> Script:
    """Everybody trains, with a loss of 4 and more; learner 0 is the fastest, and has been told to evaluate."""
    script = Script(options(learners, budget_tokens=budget_tokens, rules=rules))
    script.start(*range(learners))
    for index in range(learners):
        script.steps[index] += 1
        speed, loss = 1.0 + index, 4.0 + index
        script.do(StepReported(name(index), script.incarnations[index], 1, TOKENS_PER_STEP, speed, 0.0, loss, 1))
    return script


def answer(script: Script, loss: float) -> list[Action]:
    """Whoever was asked last answers."""
    order = script.all(Evaluate)[-1]
    return script.do(Evaluated(order.learner, order.incarnation, order.evaluation, loss, exact=True))


def asked(script: Script) -> list[str]:
    return [order.learner for order in script.all(Evaluate)]


def shown(script: Script) -> list[tuple[float, bool]]:
    return [(one.loss, one.doubted) for one in script.engine.view(script.now).evaluations]


@pytest.mark.parametrize("loss", [0.5, 0.51, 40.0])
def test_a_plausible_evaluation_is_believed_and_nobody_else_is_asked(loss: float) -> None:
    script = training(2)
    assert not of(answer(script, loss), Note)
    assert asked(script) == [name(0)]
    assert shown(script) == [(loss, False)]


@pytest.mark.parametrize("loss", [0.001, 0.49, -1.0, math.nan, -math.inf])
def test_a_doubted_evaluation_is_shown_as_one_and_another_learner_is_asked(loss: float) -> None:
    script = training(3)
    (note,) = of(answer(script, loss), Note)
    assert (note.subject, note.learner) == ("EvaluationDoubted", name(0))
    assert "the others train with 5 or more" in note.reason
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
