import json
from dataclasses import replace

from diloco.local.chaos.effect import Effect, what_text
from diloco.local.chaos.spec import Fault, FaultKind
from diloco.local.report.chaos_report import document, effects, rows, table
from diloco.local.report.history import LearnerHistory, RecoveryPoint, RunHistory, Sample
from diloco.spec.status.engine import RecoveryStatus
from tests.support.drawn import drawn
from tests.support.status_of_a_job import changed, learner_status

LEARNERS = ("east/a/0", "west/b/0", "west/b/1")
KILL = Fault(FaultKind.KILL, "west/b/0", ("west/b/0",), at_seconds=100.0)
CUT = Fault(FaultKind.CUT, "west", ("west",), at_seconds=100.0)


def lost(learner: str, lost_at: float, merged_at: float) -> RecoveryPoint:
    parts = RecoveryStatus(learner, True, 0.0, merged_at - lost_at, 0.0, 0.0, 0.0)  # noqa: FBT003
    return RecoveryPoint(merged_at, parts)


def one(history: RunHistory, fault: Fault, *recoveries: RecoveryPoint, samples: tuple[Sample, ...] = ()) -> Effect:
    learners = tuple(LearnerHistory.of(changed(learner_status(0), id=name), (), 1) for name in LEARNERS)
    (found,) = effects(replace(history, faults=(fault,), recoveries=recoveries, samples=samples, learners=learners))
    return found


def test_the_slowest_victim_ends_the_recovery(history: RunHistory) -> None:
    both = replace(KILL, target="west", victims=("west/b/0", "west/b/1"))
    first = lost("west/b/0", 100.0, 110.0)
    assert one(history, both, first).recovery_seconds is None
    assert one(history, both, first).recovered == 1
    assert one(history, both, first, lost("west/b/1", 100.0, 125.0)).recovery_seconds == 25.0
    assert what_text(both) == "kill west: west/b/0, west/b/1"
    found = one(history, replace(CUT, seconds=20.0), first, lost("west/b/1", 110.0, 128.0))
    assert (found.recovery_seconds, found.lost) == (28.0, 2)
    short = replace(CUT, seconds=2.5)
    assert what_text(short) == "cut west for 2.5 s"
    _, ((_, _, recovered),) = rows([one(history, short)])
    assert recovered == "no loss seen", "a short cut need not end a session"


def test_an_earlier_or_later_loss_is_not_this_faults(history: RunHistory) -> None:
    earlier, later = lost("west/b/0", 10.0, 50.0), lost("west/b/0", 150.0, 160.0)
    assert one(history, KILL, earlier).recovery_seconds is None
    assert one(history, KILL, earlier, later).recovery_seconds is None


def test_a_learner_that_was_down_already_recovers_from_both(history: RunHistory) -> None:
    assert one(history, KILL, lost("west/b/0", 80.0, 130.0)).recovery_seconds == 30.0


def test_a_syncer_has_recovered_once_it_has_merged_more_than_before(history: RunHistory) -> None:
    resumed = ((98, 50), (102, 40), (105, 50), (107, 60))
    samples = tuple(Sample(float(at), tokens, at, at, at) for at, tokens in resumed)
    found = one(history, replace(KILL, target="syncer", victims=("syncer",)), samples=samples)
    assert found.recovery_seconds == 7.0


def test_nothing_seen_is_told_as_such(history: RunHistory) -> None:
    found = one(history, Fault(FaultKind.KILL, "west", (), at_seconds=1.0, refused="west/b/0: has no pod"))
    _, (told,) = rows([found])
    assert told == ["1s", "kill west (refused: west/b/0: has no pod)", "-"]


def test_the_table_and_the_document_say_the_same(history: RunHistory) -> None:
    found = one(history, KILL, lost("west/b/0", 100.5, 130.0))
    assert "after 30.0 s" in drawn(table([found]), 200)
    (fault,) = json.loads(json.dumps(document([found], job="small", seed=4)))["faults"]
    assert (fault["recovery_seconds"], fault["recovered"], fault["lost"]) == (30.0, 1, 1)
