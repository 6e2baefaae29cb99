"""Learners that leave requests unanswered: the schedule and the quorum go on without them until they answer."""

from typing import Any

from diloco.core.engine.actions import Merge, Note, NoteKind
from diloco.core.engine.events import FragmentLate
from tests.support.engine_script import Script, members, name, of, only, started, stepped


def begun(**changes: Any) -> Script:
    """Two learners train, and none evaluates."""
    script = started(2, **changes)
    script.evaluated()
    return script


def answer(script: Script, *indices: int) -> None:
    """These learners answer every request, and merges end at once."""
    while asks := [
        (index, fragment)
        for fragment, current in sorted(script.state.rounds.items())
        for index in indices
        if current.awaits(name(index)) and current.closed_at is None
    ]:
        for merge in of(script.push(*asks[0], steps=1), Merge):
            script.merge_done(merge)


def seconds(script: Script, count: int, *answering: int) -> int:
    """The first of two learners makes two steps a second, the other one. Returns the rounds that were launched."""
    launched = script.state.launched
    for half in range(2 * count):
        script.step(0, seconds=0.5)
        if half % 2:
            script.step(1, seconds=1.0)
        answer(script, *answering)
        for merge in of(script.wait(0.5), Merge):
            script.merge_done(merge)
    return script.state.launched - launched


def kinds(script: Script) -> list[tuple[str, str]]:
    """The notes about who counts, and of whom."""
    told = ("PaceFollows", "LearnerNotCounted", "LearnerCounted")
    return [(note.kind, note.learner) for note in script.all(Note) if note.kind in told]


def test_the_pace_is_that_of_those_who_are_merged() -> None:
    script = begun()
    assert seconds(script, 8, 0, 1) >= 15
    seconds(script, 8, 1)
    assert kinds(script) == [("PaceFollows", name(0))]
    assert seconds(script, 8, 1) <= 9
    assert seconds(script, 8, 0, 1) >= 13
    assert kinds(script)[1:] == [("PaceFollows", name(0))], "it sets the pace again from its first answer on"


def test_if_none_are_merged_the_schedule_follows_all() -> None:
    script = started(1)
    for _ in range(60):
        script.step(0)
        answer(script, 0)
        script.state.learners[name(0)].unmerged = 3
        script.state.roster.place(script.state.learners[name(0)])
    assert min(script.engine.versions) > 10


def test_one_that_is_not_merged_is_named_after_a_lease() -> None:
    script = begun()
    seconds(script, 5, 1)
    assert not script.learner(0).unanswered_now
    seconds(script, 15, 1)
    assert script.learner(0).unanswered_now == "does not answer requests in time"
    assert not script.learner(1).unanswered_now
    seconds(script, 2, 0, 1)
    assert not script.learner(0).unanswered_now


def test_one_that_declines_what_it_reports_sets_no_pace_either() -> None:
    script = begun()
    for _ in range(8):
        for fragment in sorted({fragment for (index, fragment) in script.asks if index == 0}):
            if fragment in script.state.rounds and script.state.rounds[fragment].awaits(name(0)):
                script.decline(0, fragment)
        seconds(script, 1, 1)
    assert ("PaceFollows", name(0)) in kinds(script)


def waits(script: Script, total: float) -> list[Note]:
    """Both learners are alive, and make no steps."""
    before = len(script.log)
    for _ in range(round(total / 2)):
        script.wait(2.0)
        for index in script.incarnations:
            script.alive(index)
    return of([action for _, action in script.log[before:]], Note)


def measured(script: Script) -> None:
    """None evaluates, and both learners have answered once, at once."""
    script.evaluated()
    answer(script, 0, 1)
    for index in (0, 1):
        script.step(index)


def test_a_round_waits_for_a_quorum_and_goes_on_without_one_that_is_silent() -> None:
    script = stepped(2, quorum=2)
    measured(script)
    script.push(0, 1)
    waits(script, 68.0)
    assert script.view.quorum == 2
    notes = waits(script, 4.0)
    told = {note.kind: note for note in notes}
    assert told[NoteKind.LEARNER_NOT_COUNTED].learner == name(1)
    assert "has sent no outer gradient for a round that waited for it" in told[NoteKind.LEARNER_NOT_COUNTED].reason
    assert told[NoteKind.QUORUM_FOLLOWS].reason.endswith("only 1 learner(s) are left: these are the quorum")
    assert (script.view.quorum, script.view.quorum_wanted) == (1, 2)
    assert members(script.all(Merge)[-1:]) == [[name(0)]]
    assert "waited for it" in script.learner(1).unanswered_now


def silent(script: Script) -> None:
    """The second one, which waits at its bound, has not answered."""
    measured(script)
    script.step(1, 16)
    script.push(0, 1)
    waits(script, 72.0)
    assert script.view.quorum == 1


def test_an_answer_in_time_counts_it_again_and_one_miss_then_suffices() -> None:
    script = stepped(2, quorum=2)
    silent(script)
    script.merge_done(script.all(Merge)[-1])
    script.step(1, 3)
    script.step(0)
    script.push(1, 2)
    assert (script.view.quorum, script.learner(1).unanswered_now) == (2, "")
    assert kinds(script)[-1] == ("LearnerCounted", name(1))
    waits(script, 12.0)
    assert script.view.quorum == 2, "the other one is silent now, for the first time"


def test_a_late_answer_is_waited_for_once_more() -> None:
    script = stepped(2, quorum=2)
    silent(script)
    late = script.asks[1, 1]
    script.do(FragmentLate(name(1), late.incarnation, 1, late.version, late.attempt))
    assert script.view.quorum == 2
    assert kinds(script)[-1] == ("LearnerCounted", name(1))


def test_one_without_a_session_is_waited_for_however_long() -> None:
    script = stepped(2, quorum=2)
    measured(script)
    script.push(0, 1)
    script.leave(1)
    del script.incarnations[1]
    waits(script, 400.0)
    assert script.view.quorum == 2


def test_one_whose_sessions_end_again_and_again_is_not_waited_for() -> None:
    script = stepped(2, quorum=2)
    measured(script)
    script.push(0, 1)
    for number in range(3):
        assert script.view.quorum == 2
        script.rejoin(1, f"another {number}")
    assert script.view.quorum == 1


def test_one_that_was_never_heard_to_answer_has_the_time_of_a_start() -> None:
    script = stepped(2, quorum=2)
    script.evaluated()
    script.push(0, 0)
    waits(script, 58.0)
    assert script.view.quorum == 2
    waits(script, 14.0)
    assert script.view.quorum == 1


def test_one_that_evaluates_need_not_answer() -> None:
    script = stepped(2, quorum=2, startup_seconds=600.0)
    assert script.state.evaluation is not None
    evaluates = int(script.state.evaluation.learner[-1])
    script.push(1 - evaluates, 0)
    waits(script, 100.0)
    assert script.view.quorum == 2


def test_for_those_at_their_bound_a_round_is_launched_without_others() -> None:
    script = started(2, quorum=2)
    script.step(0, 18)
    assert not script.all(Note, lambda note: note.kind == "RoundOpened")
    notes = waits(script, 12.0)
    opened = only([note for note in notes if note.kind == "RoundOpened"], Note)
    assert opened.reason == "syncer step 1, 1 learner(s) wait for it, and fewer than 2 have reached it"


def test_a_quorum_at_its_bound_with_nothing_to_send_gives_its_turn_up() -> None:
    script = stepped(2)
    for _ in range(3):
        script.step(0)
    record = script.state.learners[name(0)]
    record.received_steps[1] = record.step - script.options.max_staleness_steps
    script.decline(0, 0)
    assert 0 in script.state.rounds
    notes = waits(script, 12.0)
    assert "RoundAbandoned" in {note.kind for note in notes}


def test_a_checkpoint_keeps_who_does_not_count() -> None:
    script = stepped(2, quorum=2)
    silent(script)
    again = script.restarted()
    assert again.view.quorum == 1
    assert again.learner(1).unanswered_now == script.learner(1).unanswered_now
