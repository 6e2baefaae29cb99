"""What was measured decides where arithmetic does not."""

from dataclasses import replace
from typing import Any

import pytest

from diloco.plan.outcome import Outcome, PoolOutcome
from diloco.plan.verdict import Fit, FitKind, judge
from tests.support.situations import NEEDED, between, situation

WELL = PoolOutcome("r0/p", 1, 1000.0, 0.95, 0.05, 0.0, 0.0, 0, 0.1)


def outcome(pool: PoolOutcome = WELL, *, pace: float = 1.0, steps: float = 0.5, allowed: int = 2) -> Outcome:
    """Of 100 intervals of 24 steps of half a second; ``steps``: that a round takes."""
    return Outcome(100 * 12.0, round(pace * 2400), steps * 0.5, allowed, (pool, replace(WELL, name="r1/p")))


def told(found: Fit) -> tuple[FitKind, str]:
    return found.kind, found.reason


def test_what_is_merged_as_it_is_due_fits() -> None:
    found = judge(situation(), outcome())
    assert told(found) == (FitKind.FITS, "a round takes 0.5 steps of 0.5 s, and no link limits it")
    assert found.merged_share == pytest.approx(0.95)
    assert (found.overlap, found.overlap_needed) == (2, 0)
    full = judge(between((0.1, 0.5), (0.25, 0.25)), outcome())
    assert full.reason.endswith("and the fullest link, r0, is used to 50 %")


def test_without_an_outcome_arithmetic_alone_tells() -> None:
    assert told(judge(situation(), None)) == (FitKind.FITS, "no link limits it")
    assert judge(situation(rates=0.9 * NEEDED), None).kind is FitKind.LINK_TOO_THIN
    assert judge(situation(steps=[None] * 4), None).kind is FitKind.STEP_TIME_UNKNOWN
    assert judge(situation(), None).merged_share is None


@pytest.mark.parametrize(
    ("merge_seconds", "kind"), [(0.475, FitKind.FITS), (0.48, FitKind.MERGES_TOO_SLOW), (0.5, FitKind.MERGES_TOO_SLOW)]
)
def test_merges_may_take_nineteen_twentieths_of_an_interval(merge_seconds: float, kind: FitKind) -> None:
    found = judge(replace(situation(), merge_seconds=merge_seconds), outcome())
    assert found.kind is kind
    assert kind is FitKind.FITS or found.reason.startswith("merging every fragment takes the syncer ")


@pytest.mark.parametrize(
    ("changed", "exchange", "kind", "reason"),
    [
        ({"overwritten": 0.5}, {}, FitKind.FITS, ""),
        (
            {"overwritten": 0.51},
            {},
            FitKind.ROUND_TOO_LONG,
            "a fragment is under way for 12.2 of the interval's 24 steps of 0.5 s at r0/p, so most of its work is lost",
        ),
        ({"late": 0.2}, {}, FitKind.FITS, ""),
        (
            {"late": 0.3, "answer_seconds": 20.0},
            {},
            FitKind.ROUND_TOO_LONG,
            "answers of r0/p come too late for a round to wait for at an interval of 24 steps: 30 % of their work is",
        ),
        (
            {"late": 0.3, "answer_seconds": 4.0},
            {"overlap": 2},
            FitKind.OVERLAP_TOO_SHORT,
            "answers of r0/p come 8.0 steps after a launch, too late for an overlap of 2: 30 % of their work is left",
        ),
        ({"late": 0.3, "answer_seconds": 4.0, "lead_steps": 6}, {"overlap": 2}, FitKind.ROUND_TOO_LONG, ""),
        ({"waiting": 0.05}, {"staleness_bound_steps": 26}, FitKind.FITS, ""),
        (
            {"waiting": 0.06},
            {"staleness_bound_steps": 26},
            FitKind.STALENESS_BOUND_TOO_LOW,
            "a round takes 0.5 steps of 0.5 s, and the staleness bound leaves 2 beyond the interval, so learners pause",
        ),
        ({"waiting": 0.06}, {}, FitKind.FITS, ""),
        # In lock-step they are meant to wait.
        ({"waiting": 0.06}, {"staleness_bound_steps": 26, "quorum": 4}, FitKind.FITS, ""),
    ],
)
def test_what_becomes_of_the_work_decides(
    changed: dict[str, Any], exchange: dict[str, Any], kind: FitKind, reason: str
) -> None:
    found = judge(situation(**exchange), outcome(replace(WELL, **changed)))
    assert found.kind is kind
    assert found.reason.startswith(reason)


@pytest.mark.parametrize(
    ("overlap", "pace", "kind"),
    [
        (2, 0.85, FitKind.OVERLAP_TOO_SHORT),
        (2, 0.95, FitKind.FITS),
        (5, 0.85, FitKind.FITS),
        (None, 0.85, FitKind.FITS),  # the engine finds one
    ],
)
def test_a_set_overlap_must_let_merges_be_made_as_they_are_due(overlap: int | None, pace: float, kind: FitKind) -> None:
    found = judge(situation(overlap=overlap), outcome(steps=4.6, pace=pace, allowed=4))
    assert found.kind is kind
    assert found.overlap_needed == 5
    assert found.overlap == (4 if overlap is None else overlap)
    if not found.fits:
        assert found.reason == (
            "a round takes 4.6 steps of 0.5 s and needs an overlap of 5, not 2: 85 % of the merges are made"
        )


@pytest.mark.parametrize(
    ("numels", "interval", "steps", "needed"),
    [((4000,) * 24, 24, 1.0, 0), ((4000,) * 24, 24, 1.1, 2), ((4000,) * 4, 24, 6.2, 7), ((4000,) * 24, 6, 0.9, 1)],
)
def test_an_overlap_holds_as_many_fragments_as_are_due_meanwhile(
    numels: tuple[int, ...], interval: int, steps: float, needed: int
) -> None:
    assert judge(situation(numels=numels, interval=interval), outcome(steps=steps)).overlap_needed == needed


def test_no_more_than_five_late_pools_are_named() -> None:
    late = tuple(replace(WELL, name=f"r{index}/p", late=0.9) for index in range(6))
    found = judge(situation(), replace(outcome(), pools=late))
    assert found.reason.startswith("answers of r0/p, r1/p, r2/p, r3/p and r4/p come too late")


def test_an_outcome_without_pools_or_rounds_condemns_nothing() -> None:
    found = judge(situation(overlap=2), Outcome(1.0, 0, None, 2, ()))
    assert (found.kind, found.overlap_needed, found.merged_share) == (FitKind.FITS, None, None)
