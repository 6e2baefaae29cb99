import json
from dataclasses import replace

import pytest

from diloco.local.chaos.spec import Fault, FaultKind
from diloco.local.report.chaos_report import Effect, Observed, Recovered, document, effects, rows, table, what_text
from diloco.local.report.history import Sample
from tests.support.drawn import drawn

LEARNERS = ("east/a/0", "west/b/0", "west/b/1")
KILL = Fault(FaultKind.KILL, "west/b/0", ("west/b/0",), at_seconds=100.0)
CUT = Fault(FaultKind.CUT, "west", ("west",), at_seconds=100.0)


def samples(*, fault: float = 100.0, back: float = 130.0, end: float = 200.0) -> list[Sample]:
    """Two seconds are given each second; while the fault lasts half is computed and a quarter merged, else all."""
    found, merged, computing = [], 0.0, 0.0
    for second in range(int(end) + 1):
        found.append(Sample(float(second), merged, 2.0 * second, merged, computing))
        lasts = fault <= second < back
        merged += 0.5 if lasts else 2.0
        computing += 1.0 if lasts else 2.0
    return found


def observed(*recoveries: Recovered, evaluations: tuple[tuple[float, float], ...] = ()) -> Observed:
    return Observed(samples(), recoveries, evaluations, LEARNERS, 200.0)


def one(fault: Fault, seen: Observed) -> Effect:
    (found,) = effects([fault], seen)
    return found


def test_shares_are_those_before_during_and_after() -> None:
    seen = observed(
        Recovered("west/b/0", 100.5, 130.0), evaluations=((50.0, 3.0), (90.0, 2.5), (110.0, 2.4), (140.0, 2.25))
    )
    found = one(KILL, seen)
    assert (found.recovery_seconds, found.recovered, found.lost) == (30.0, 1, 1)
    assert (found.before.merged, found.before.goodput) == (1.0, 1.0)
    assert (found.during.merged, found.during.goodput) == pytest.approx((0.25, 0.5))
    assert (found.after.merged, found.after.goodput) == (1.0, 1.0)
    assert (found.loss_before, found.loss_after) == (2.5, 2.25)


def test_the_slowest_victim_ends_the_recovery() -> None:
    both = replace(KILL, target="west", victims=("west/b/0", "west/b/1"))
    first = Recovered("west/b/0", 100.0, 110.0)
    assert one(both, observed(first)).recovery_seconds is None
    assert one(both, observed(first)).recovered == 1
    assert one(both, observed(first, Recovered("west/b/1", 100.0, 125.0))).recovery_seconds == 25.0
    assert what_text(both) == "kill west: west/b/0, west/b/1"
    found = one(replace(CUT, seconds=20.0), observed(first, Recovered("west/b/1", 110.0, 128.0)))
    assert (found.recovery_seconds, found.lost) == (28.0, 2)
    short = replace(CUT, seconds=2.5)
    assert what_text(short) == "cut west for 2.5 s"
    _, ((_, _, recovered, *_),) = rows([one(short, observed())])
    assert recovered == "no loss seen", "a short cut need not end a session"


def test_an_earlier_or_later_loss_is_not_this_faults() -> None:
    earlier, later = Recovered("west/b/0", 10.0, 50.0), Recovered("west/b/0", 150.0, 160.0)
    assert one(KILL, observed(earlier)).recovery_seconds is None
    assert one(KILL, observed(earlier, later)).recovery_seconds is None


def test_a_learner_that_was_down_already_recovers_from_both() -> None:
    assert one(KILL, observed(Recovered("west/b/0", 80.0, 130.0))).recovery_seconds == 30.0


def test_a_syncer_has_recovered_once_it_has_merged_more_than_before() -> None:
    resumed = [Sample(float(at), tokens, at, at, at) for at, tokens in ((98, 50), (102, 40), (105, 50), (107, 60))]
    found = one(replace(KILL, target="syncer", victims=("syncer",)), Observed(resumed, end=110.0))
    assert found.recovery_seconds == 7.0


def test_an_account_that_has_gone_back_gives_no_share() -> None:
    back = [Sample(90.0, 1.0, 100.0, 50.0, 60.0), Sample(120.0, 1.0, 80.0, 40.0, 50.0)]
    assert one(KILL, Observed(back, end=120.0)).during.merged is None


def test_nothing_seen_is_told_as_such() -> None:
    found = one(Fault(FaultKind.KILL, "west", (), at_seconds=1.0, refused="west/b/0: has no pod"), Observed())
    head, ((at, what, recovered, goodput, _, loss),) = rows([found])
    assert len(head) == 6
    assert (at, what, recovered) == ("1s", "kill west (refused: west/b/0: has no pod)", "-")
    assert set(goodput) <= set("-, ")
    assert set(loss) <= set("-, ")


def test_the_table_and_the_document_say_the_same() -> None:
    found = effects([KILL], observed(Recovered("west/b/0", 100.5, 130.0)))
    text = drawn(table(found), 200)
    assert "after 30.0 s" in text
    assert "100.0 %, 25.0 %, 100.0 %" in text
    (fault,) = json.loads(json.dumps(document(found, job="small", seed=4)))["faults"]
    assert fault["recovery_seconds"] == 30.0
    assert fault["during"] == {"merged": pytest.approx(0.25), "goodput": pytest.approx(0.5)}
