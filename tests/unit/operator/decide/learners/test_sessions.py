from typing import Any

from diloco_operator.decide.learners.sessions import session_events
from diloco_operator.decide.observed import Sessions, SyncerStatusView

WANTED = frozenset(f"here/cpu/{index}" for index in range(1000))


def reported(epoch: int = 1, phase: str = "Training", **learners: Any) -> SyncerStatusView:
    """By the index: the state, the incarnation, and whether it has left."""
    found = [
        {"id": f"here/cpu/{index[1:]}", "state": state, "incarnation": number, "left": left}
        for index, (state, number, left) in learners.items()
    ]
    return SyncerStatusView.model_validate({"job": "job", "epoch": epoch, "phase": phase, "learners": found})


def told(before: SyncerStatusView, after: SyncerStatusView) -> list[tuple[str, str, str]]:
    return [(one.type, one.reason, one.message) for one in session_events(Sessions.of(before), after, WANTED)]


def test_a_learner_that_is_lost_or_back_is_named() -> None:
    trains = reported(_0=("Training", 1, False), _1=("Loading", 2, False))
    lost = reported(_0=("Absent", 1, False), _1=("Training", 2, False))
    back = reported(_0=("Loading", 3, False), _1=("Training", 2, False))
    assert told(trains, trains) == []
    text = "1 learner(s) lost their session with the syncer: here/cpu/0"
    assert told(trains, lost) == [("Warning", "LearnersLost", text)]
    assert told(lost, lost) == []
    assert told(lost, back) == [("Normal", "LearnersBack", "1 learner(s) joined the syncer again: here/cpu/0")]
    assert told(trains, back) == told(lost, back), "it was away for less than the operator looks"


def test_one_that_leaves_joins_first_or_is_given_up_is_not_lost() -> None:
    before = reported(_0=("Training", 1, False), _1=("Training", 2, False), _2=("Absent", 0, False))
    after = reported(_0=("Absent", 1, True), _1=("GivenUp", 2, False), _2=("Training", 3, False))
    assert told(before, after) == []


def test_a_learner_that_the_manifest_no_longer_has_is_not_told_of() -> None:
    before, after = reported(_1000=("Training", 1, False)), reported(_1000=("Absent", 1, False))
    assert told(before, after) == []


def test_a_restart_of_the_syncer_loses_no_learner() -> None:
    assert told(reported(1, _0=("Training", 1, False)), reported(2, _0=("Absent", 1, False))) == []


def test_learners_whose_connection_ends_with_the_job_are_not_lost() -> None:
    assert told(reported(_0=("Training", 1, False)), reported(1, "Complete", _0=("Absent", 1, False))) == []


def test_a_thousand_lost_learners_are_one_event() -> None:
    def thousand(state: str) -> SyncerStatusView:
        return reported(1, "Training", **{f"_{index}": (state, 1 + index, False) for index in range(1000)})

    ((_, _, text),) = told(thousand("Training"), thousand("Absent"))
    assert text.startswith("1000 learner(s) lost their session with the syncer: here/cpu/0, here/cpu/1, ")
    assert text.endswith(" and 995 more")
