"""When merging begins, and from when on it counts for the budget."""

from typing import Any

from diloco.core.engine.actions import AskFragment, Merge, Note, NoteKind
from diloco.core.engine.events import LearnersPlanned, PoolMinimum
from tests.support.engine_script import POOL, TOKENS_PER_STEP, Script, name, of, options


def fresh(learners: int = 4, **changes: Any) -> Script:
    return Script(options(learners, **changes), begun=False)


def merges(script: Script, index: int) -> None:
    """A learner answers a request, and alone is merged."""
    asked = [ask for ask in script.all(AskFragment) if ask.learner == name(index)][-1]
    script.wait(0.5)
    for merge in of([*script.push(index, asked.fragment), *script.wait(20.0)], Merge):
        script.merge_done(merge)


def test_merging_begins_once_half_of_the_planned_learners_have_made_a_step() -> None:
    script = fresh()
    script.start(0, 1)
    script.step(0, 3)
    assert not script.all(AskFragment)
    assert "merging begins once half" in script.view.phase_reason
    actions = script.step(1)
    assert NoteKind.MERGING_BEGINS in [note.kind for note in of(actions, Note)]
    assert of(actions, AskFragment)


def test_it_begins_without_the_others_once_they_have_had_time_to_start() -> None:
    script = fresh(startup_seconds=60.0)
    script.start(0)
    script.step(0)
    for _ in range(11):
        script.wait(5.0)
        script.alive(0)
    assert not script.all(AskFragment)
    script.wait(5.0)
    script.alive(0)
    (note,) = script.all(Note, lambda note: note.kind == NoteKind.MERGING_BEGINS)
    assert note.reason == "1 of 4 planned learners have made a step, and sync.startupSeconds are over"
    assert script.all(AskFragment)


def test_of_an_elastic_pool_only_its_minimum_is_waited_for() -> None:
    script = fresh(8, pool_minimums=(PoolMinimum(POOL, 2),))
    script.start(0)
    script.step(0)
    assert script.all(AskFragment)


def test_unplanned_learners_do_not_make_it_begin() -> None:
    script = fresh(4)
    script.start(0, 7, 8)
    for index in (0, 7, 8):
        script.step(index)
    assert not script.all(AskFragment)


def test_what_is_merged_counts_once_more_than_half_are_measured() -> None:
    script = fresh(2)
    script.start(0)
    for _ in range(3):
        script.wait(1.0)
        script.step(0)
    merges(script, 0)
    assert (script.view.merged_tokens, script.view.syncer_step) == (0.0, 1)
    script.start(1)
    script.step(1)
    assert script.view.merged_tokens == 0.0, "its first step may have compiled"
    script.step(1)
    assert script.view.merged_tokens == TOKENS_PER_STEP * 4 / 4, "four steps in one fragment of four"
    notes = script.all(Note, lambda note: note.kind == NoteKind.WORK_COUNTS)
    assert notes[0].reason == ("2 of 2 planned learners are measured; 400 of 400 tokens that were merged before count")


def test_those_that_have_a_session_are_measured_before_it_counts() -> None:
    script = fresh(3)
    script.start(0, 1, 2)
    for index in (0, 1):
        script.step(index)
        script.step(index)
    assert not script.state.confirmed
    script.leave(2)
    assert script.state.confirmed


def test_no_more_counts_than_all_could_have_made_at_a_speed_that_counts() -> None:
    script = fresh(2)
    script.start(0)
    for _ in range(3):
        script.wait(1.0)
        script.step(0, count=1000, seconds=0.001)
    merges(script, 0)
    before = sum(script.state.withheld)
    script.start(1)
    script.step(1)
    script.step(1)
    seconds = script.state.elapsed(script.now)
    # One makes a step a second, and the other counts as twice as fast.
    assert sum(script.engine.fragment_tokens) == min(before, int(seconds * 2 * 150.0))
    assert script.state.withheld == [0] * 4


def test_alone_it_counts_later_and_in_a_job_of_one_at_once() -> None:
    script = fresh(2, startup_seconds=60.0)
    script.start(0)
    for _ in range(3):
        script.wait(1.0)
        script.step(0)
    merges(script, 0)
    script.wait(40.0)
    script.alive(0)
    assert script.view.merged_tokens == 100.0
    single = fresh(1)
    single.start(0)
    single.step(0)
    merges(single, 0)
    assert single.view.merged_tokens == 100.0


def test_a_restart_of_the_syncer_neither_waits_nor_forgets() -> None:
    script = fresh(2)
    script.start(0)
    for _ in range(3):
        script.wait(1.0)
        script.step(0)
    merges(script, 0)
    again = script.restarted()
    assert again.state.begun
    assert again.state.withheld == script.state.withheld != [0] * 4
    script.start(1)
    script.step(1, 2)
    script.step(1, 2)
    assert script.restarted().state.confirmed


def test_a_plan_that_shrinks_lets_it_begin() -> None:
    script = fresh(4)
    script.start(0)
    script.step(0)
    assert not script.all(AskFragment)
    script.do(LearnersPlanned((name(0), name(1)), (POOL,)))
    assert script.all(AskFragment)
