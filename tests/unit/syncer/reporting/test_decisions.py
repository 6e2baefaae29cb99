from diloco.core.engine.actions import Admit, Fence, Finish, Merge, Note, NoteKind, Refusal
from diloco.local.report import timeline
from diloco.spec.status.engine import RecoveriesStatus, RecoveryStatus
from diloco.syncer.reporting.decisions import Decisions
from tests.support.status_of_a_job import STATUS, changed


def test_decisions_about_learners_are_kept_until_they_are_taken() -> None:
    decisions = Decisions(lambda: 5.0)
    decisions.serves("3")
    decisions.observe(Admit("a", "x", 1, (), (), 0, 0, 0, 0, "first join"))
    decisions.observe(Note(NoteKind.LEARNER_TRAINS, "loaded", "a"))
    decisions.observe(Note(NoteKind.QUORUM_FOLLOWS, "too few"))
    decisions.observe(Fence("a", 1, Refusal.STUCK, "no step"))
    decisions.observe(Merge(0, 1, (), "due"))
    decisions.observe(Finish(complete=True, reason="merged"))
    assert [(one.event, one.process, one.details) for one in decisions.take()] == [
        ("serves", "syncer", {"epoch": "3"}),
        ("admit", "a", {"reason": "first join"}),
        ("note", "a", {"kind": "LearnerTrains", "reason": "loaded"}),
        ("note", "syncer", {"kind": "QuorumFollows", "reason": "too few"}),
        ("fence", "a", {"kind": "Stuck", "reason": "no step"}),
        ("finish", "syncer", {"reason": "merged"}),
    ]
    assert decisions.take() == []


def test_a_note_is_kept_if_the_page_shows_it() -> None:
    decisions = Decisions()
    for kind in NoteKind:
        decisions.observe(Note(kind, "a reason", "a"))
    shown = {str(kind) for kind in (*timeline._NOTED, *timeline._TURNS_OF_NOTES)}
    assert {one.details["kind"] for one in decisions.take()} == shown


def test_of_a_learner_that_merges_leave_out_the_first_is_kept() -> None:
    decisions = Decisions()
    for learner in ("a", "b", "a", "a"):
        decisions.observe(Note(NoteKind.MEMBER_LEFT_OUT, "far too large", learner))
    assert [one.process for one in decisions.take()] == ["a", "b"]


def test_a_recovery_is_kept_once_with_the_time_of_its_merge() -> None:
    decisions = Decisions(lambda: 1000.0)
    first, second = (RecoveryStatus(name, True, lost, 1.0, 2.0, 3.0, 4.0) for name, lost in (("a", 5.0), ("b", 20.0)))  # noqa: FBT003
    view = changed(STATUS, elapsed_seconds=16.0, recoveries=RecoveriesStatus(count=1, latest=(first,)))
    decisions.look(view)
    decisions.look(view)
    later = RecoveriesStatus(count=2, latest=(first, second))
    decisions.look(changed(view, elapsed_seconds=30.0, recoveries=later))
    kept = decisions.take()
    assert [(one.event, one.process, one.time) for one in kept] == [
        ("recovered", "a", 999.0),
        ("recovered", "b", 1000.0),
    ]
    assert [one.recovery for one in timeline.recoveries(kept, timeline.RunClock(kept))] == [first, second]
