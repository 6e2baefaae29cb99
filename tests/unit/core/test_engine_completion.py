"""Evaluations, the budget, the end, and snapshots."""

import itertools
import json
from typing import Any

import pytest

from diloco.core.actions import (
    Action,
    AskFragment,
    Broadcast,
    Checkpoint,
    Discard,
    Evaluate,
    Finish,
    Merge,
    Note,
    Refusal,
    Refuse,
)
from diloco.core.events import Evaluated, LeftOut, Merged, SnapshotAsked
from diloco.core.snapshot import SnapshotError
from tests.support.engine_script import Script, name, of, only, options


def turn(script: Script, index: int = 0, steps: int = 1) -> list[Action]:
    """One inner step, and whatever it makes due, merged at once."""
    actions = list(script.step(index))
    mine = [ask for ask in of(actions, AskFragment) if ask.learner == name(index)]
    for ask in mine:
        for merge in of(script.push(index, ask.fragment, steps=steps), Merge):
            actions += script.merge_done(merge)
    return actions


def answer(script: Script, order: Evaluate, loss: float = 2.0, *, exact: bool = True) -> list[Action]:
    return script.do(Evaluated(order.learner, order.incarnation, order.evaluation, loss, exact))


def begun(learners: int = 1, **changes: Any) -> Script:
    """Everyone trains, and the initial model is evaluated."""
    script = Script(options(learners, **changes))
    script.start(*range(learners))
    answer(script, script.all(Evaluate)[0])
    return script


def deserted() -> Script:
    """The budget is merged, and the only learner has left before the final evaluation."""
    script = begun(budget_tokens=20)
    script.step(0)
    merge = only(script.push(0, 0), Merge)
    script.leave(0)
    script.merge_done(merge)
    return script


def test_the_initial_model_is_evaluated_by_the_first_learner() -> None:
    script = Script(options(2))
    script.join(0)
    order = only(script.ready(0), Evaluate)
    assert (order.learner, order.tokens, order.final) == (name(0), 0, False)


def test_evaluations_come_once_in_the_tokens_asked_for() -> None:
    script = begun(evaluate_every_tokens=300)
    for _ in range(40):
        for order in of(turn(script), Evaluate):
            answer(script, order)
    tokens = [evaluation.tokens for evaluation in script.engine.view(script.now).evaluations]
    assert tokens[0] == 0
    assert [later // 300 - earlier // 300 for earlier, later in itertools.pairwise(tokens)] == [1] * (len(tokens) - 1)


def test_the_fastest_learner_evaluates() -> None:
    script = begun(2, evaluate_every_tokens=100, grace_safety=0.0)
    script.step(0, seconds=3.0)
    script.merge_done(only(script.push(0, 0, steps=1), Merge))
    for _ in range(8):
        turn(script, 1)
        for merge in of(script.wait(2.0), Merge):
            script.merge_done(merge)
    assert script.all(Evaluate)[1].learner == name(1)


def test_an_evaluation_whose_learner_is_lost_goes_to_another() -> None:
    script = Script(options(2))
    script.start(0, 1)
    first = script.all(Evaluate)[0]
    actions = script.leave(int(first.learner[-1]))
    again = only(actions, Evaluate)
    assert again.learner != first.learner
    answer(script, first)  # too late
    assert not script.engine.view(script.now).evaluations
    answer(script, again)
    assert len(script.engine.view(script.now).evaluations) == 1


def test_the_budget_ends_in_an_exact_evaluation_of_the_final_model() -> None:
    script = begun(budget_tokens=250)
    for _ in range(12):
        turn(script)
    finals = script.all(Evaluate, lambda order: order.final)
    assert finals[0].versions == script.engine.view(script.now).versions
    assert script.engine.view(script.now).phase == "Evaluating"
    again = only(answer(script, finals[0], exact=False), Evaluate)
    finish = only(answer(script, again, 1.5), Finish)
    assert finish.complete
    assert script.engine.view(script.now).evaluations[-1].loss == 1.5
    assert only(script.join(0), Refuse).refusal == Refusal.FINISHED


def test_rounds_without_quorum_do_not_outlive_the_budget() -> None:
    script = Script(options(2, budget_tokens=20, quorum=1))
    script.start(0, 1)
    script.step(0)
    script.step(0)
    assert set(script.engine.view(script.now).versions) == {0}
    script.push(1, 1)
    script.push(0, 1)
    merge = script.all(Merge)[0]
    actions = script.merge_done(merge)
    assert only(actions, Evaluate).final
    assert of(script.push(0, 0), Discard)


def test_a_job_without_learners_at_its_end_waits_for_one_but_not_for_ever() -> None:
    script = deserted()
    assert not script.engine.view(script.now).finished
    finish = only(script.wait(3 * 61.0), Finish)
    assert finish.complete
    assert "no learner evaluated the final model" in finish.reason


def test_a_learner_that_comes_back_evaluates_the_final_model() -> None:
    script = deserted()
    script.join(0, "restarted")
    assert only(script.ready(0), Evaluate).final


def test_a_snapshot_is_ordered_by_a_checkpoint() -> None:
    script = Script(options(1))
    assert only(script.do(SnapshotAsked("every 30 s")), Checkpoint).reason == "every 30 s"


def test_a_snapshot_goes_through_json_and_goes_on() -> None:
    script = Script(options(2, evaluate_every_tokens=300, grace_safety=0.0))
    script.start(0, 1)
    for _ in range(20):
        turn(script)
    before = script.engine.view(script.now)
    saved = json.loads(json.dumps(script.engine.snapshot(script.now)))
    again = Script(options(2, evaluate_every_tokens=300, grace_safety=0.0), epoch=2, saved=saved)
    after = again.engine.view(again.now)
    assert after.versions == before.versions
    assert (after.merged_tokens, after.syncer_step) == (before.merged_tokens, before.syncer_step)
    assert {learner.state for learner in after.learners} == {"Absent"}
    again.start(0)
    assert of(again.step(0), AskFragment)[0].fragment == 20 % 4


def test_a_superseded_process_stays_out_after_a_restart_of_the_syncer() -> None:
    script = Script(options(1))
    script.start(0)
    script.join(0, "another")
    again = Script(options(1), epoch=2, saved=script.engine.snapshot(script.now))
    assert only(again.join(0), Refuse).refusal == Refusal.SUPERSEDED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"versions": "many"}, "versions"),
        ({"format": 99}, "format"),
        ({"surprise": 1}, "surprise"),
        ({"versions": [1], "fragment_tokens": [1]}, "1 fragments, the job has 4"),
    ],
)
def test_a_snapshot_that_is_none_is_refused(change: dict[str, object], message: str) -> None:
    saved = Script(options(1)).engine.snapshot(0.0)
    with pytest.raises(SnapshotError, match=message):
        Script(options(1), saved=saved | change)


def test_the_merged_share_counts_merged_steps_over_the_time_given() -> None:
    script = Script(options(2, fragments=1, overlap=2))
    script.start(0, 1)
    for _ in range(10):
        script.wait(1.0)
        script.step(0)
        script.step(1)
        for merge in [*of(script.push(0, 0, steps=1), Merge), *of(script.push(1, 0, steps=1), Merge)]:
            script.merge_done(merge)
    assert script.engine.view(script.now).merged == pytest.approx(1.0)
    script.leave(1)
    for _ in range(10):
        script.wait(1.0)
        script.step(0)
        for merge in of(script.push(0, 0, steps=1), Merge):
            script.merge_done(merge)
    # One of two learners was away for half of the time.
    assert script.engine.view(script.now).merged == pytest.approx(0.75)


def test_the_merged_share_is_at_most_one_although_steps_are_estimated() -> None:
    script = Script(options(1, fragments=1, overlap=2))
    script.start(0)
    for seconds in (1.0, 0.01, 0.01):
        script.wait(seconds)
        script.step(0)
    for merge in of(script.push(0, 0, steps=3), Merge):
        script.merge_done(merge)
    assert script.engine.view(script.now).merged == 1.0


def test_a_silent_learner_is_not_asked_again_while_there_is_another() -> None:
    script = Script(options(2))
    script.start(0, 1)
    assert script.all(Evaluate)[0].learner == name(0)
    for _ in range(13):
        script.wait(5.0)
        script.step(0)
        script.step(1)
    assert [order.learner for order in script.all(Evaluate)] == [name(0), name(1)]


def test_a_merge_that_failed_counts_for_nothing() -> None:
    script = Script(options(1))
    script.start(0)
    script.step(0)
    merge = only(script.push(0, 0), Merge)
    broadcast = only(script.do(Merged(merge.fragment, merge.version, "0" * 32, 0.01, failed=True)), Broadcast)
    assert [merged for _, _, merged in broadcast.learners] == [False]
    view = script.engine.view(script.now)
    assert (view.merged_tokens, view.versions[0]) == (0, 1)


def test_a_member_that_was_left_out_counts_for_nothing_and_is_named() -> None:
    script = Script(options(2))
    script.start(0, 1)
    script.step(0)
    script.step(1)
    script.push(0, 0)
    merge = only(script.push(1, 0), Merge)
    left_out = (LeftOut(name(1), "it is too large"),)
    actions = script.do(Merged(merge.fragment, merge.version, "0" * 32, 0.01, left_out=left_out))
    assert [merged for _, _, merged in only(actions, Broadcast).learners] == [True, False]
    note = only(actions, Note)
    assert (note.subject, note.learner, note.fragment) == ("MemberLeftOut", name(1), 0)
    assert note.reason == "its outer gradient is not in version 1: it is too large"
    view = script.engine.view(script.now)
    assert [(one.left_out, one.left_out_reason) for one in view.learners] == [(0, ""), (1, "it is too large")]
    assert [one.merged_tokens for one in view.learners] == [100.0, 0.0]
    assert view.merged_tokens == 100.0


def test_a_learner_away_since_a_syncer_restart_is_in_the_allotted_time() -> None:
    script = Script(options(2))
    script.start(0, 1)
    script.wait(100.0)
    again = Script(options(2), epoch=2, saved=script.engine.snapshot(script.now))
    again.join(0)
    again.wait(1000.0)
    assert [round(one.allotted_seconds) for one in again.engine.view(again.now).learners] == [1100, 1100]


def test_the_final_evaluation_waits_for_the_merges_that_run() -> None:
    script = begun(budget_tokens=30)
    merges = []
    for fragment in (0, 1):
        script.step(0)
        merges += of(script.push(0, fragment, steps=1), Merge)
    assert len(merges) == 2
    script.merge_done(merges[0])
    actions = script.merge_done(merges[1])
    evaluate = only(actions, Evaluate)
    assert evaluate.final
    assert evaluate.versions == (1, 1, 0, 0)
    assert [order.final for order in script.all(Evaluate)] == [False, True]
