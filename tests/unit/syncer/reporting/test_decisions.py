from diloco.core.engine.actions import Admit, Fence, Finish, Merge, Note, NoteKind, Refusal
from diloco.local.report import timeline
from diloco.syncer.reporting.decisions import Decisions


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
