"""Judges whether overlap, interval and links fit together (ours): by arithmetic where that tells, then by an outcome.

The outcome is that of a short simulation (``diloco plan``) or of a running job, measured by its syncer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from math import ceil
from typing import Final

from diloco.plan.links import FULL, LinkUse, link_uses, merging_share, thin_text
from diloco.plan.outcome import Outcome, PoolOutcome
from diloco.plan.situation import Exchange, Situation
from diloco.spec.words import listed

LOST: Final = 0.5
"""Share of a pool's work that may be overwritten while fragments are under way (ours)."""
LATE: Final = 0.2
"""Share of a pool's work that may come too late for its rounds (ours)."""
PAUSE: Final = 0.05
"""Share of the time for which learners may stand still at the staleness bound (ours)."""
PACE: Final = 0.9
"""Share of the merges that are due which a set overlap must allow (ours)."""
_MOST_NAMES: Final = 5


class FitKind(StrEnum):
    """The verdicts. Of several misfits the first one here is reported."""

    STEP_TIME_UNKNOWN = "StepTimeUnknown"
    LINK_TOO_THIN = "LinkTooThin"
    MERGES_TOO_SLOW = "MergesTooSlow"
    """The syncer takes longer to merge all fragments than an interval."""
    ROUND_TOO_LONG = "RoundTooLong"
    """Some fragments are under way, or some steps take, for so long that most of the work is lost at this interval."""
    STALENESS_BOUND_TOO_LOW = "StalenessBoundTooLow"
    """A round takes longer than the staleness bound leaves beyond the interval."""
    OVERLAP_TOO_SHORT = "OverlapTooShort"
    NOT_SIMULATED = "NotSimulated"
    """Bytes fit their links, and nothing else is known: only a plan has this verdict."""
    FITS = "Fits"


@dataclass(frozen=True, slots=True)
class Fit:
    """The result for a situation."""

    kind: FitKind
    reason: str
    links: tuple[LinkUse, ...] = ()
    """The regions', then the syncer's. Empty while no step time is known."""
    step_seconds: float | None = None
    """An inner step of the K-th fastest learner: the schedule counts in these."""
    outcome: Outcome | None = None
    """None: nothing was simulated or measured."""
    overlap_needed: int | None = None
    """The least tau that holds a round; None: not known."""
    overlap: int | None = None
    """tau as it is set, or as the engine has chosen it; None: not known."""

    @property
    def fits(self) -> bool:
        """Whether nothing is wrong."""
        return self.kind is FitKind.FITS

    @property
    def merged_share(self) -> float | None:
        """Share of all work that is merged; None: not known."""
        return None if self.outcome is None else self.outcome.merged_share

    @property
    def round_steps(self) -> float | None:
        """How long a round takes, in steps; None: not known."""
        seconds = None if self.outcome is None else self.outcome.round_seconds
        return seconds / self.step_seconds if seconds is not None and self.step_seconds else None


def judge(situation: Situation, outcome: Outcome | None) -> Fit:
    """Judge a situation; without an ``outcome`` by arithmetic alone."""
    step_seconds, exchange = situation.quorum_step_seconds, situation.exchange
    if step_seconds is None:
        return Fit(FitKind.STEP_TIME_UNKNOWN, "the duration of an inner step is not known")
    uses = link_uses(situation)
    needed = None if outcome is None else _overlap_needed(exchange, outcome, step_seconds)
    overlap = exchange.overlap
    if overlap is None and outcome is not None:
        overlap = _least_overlap(exchange, outcome.allowed)
    found = chain(_of_the_ends(situation, uses), _of_the_outcome(situation, outcome, needed, step_seconds))
    kind, reason = next(found, (FitKind.FITS, ", and ".join([*_round(outcome, step_seconds), _used(uses)])))
    return Fit(kind, reason, uses, step_seconds, outcome, needed, overlap)


def _overlap_needed(exchange: Exchange, outcome: Outcome, step_seconds: float) -> int | None:
    """The least tau that lets as many fragments be under way as are due in the time that a round takes."""
    if outcome.round_seconds is None:
        return None
    steps = outcome.round_seconds / step_seconds
    return _least_overlap(exchange, ceil(steps * len(exchange.numels) / exchange.interval))


def _least_overlap(exchange: Exchange, fragments: int) -> int:
    """The least tau with which so many fragments may be in flight: it allows ceil(tau P / H)."""
    return (fragments - 1) * exchange.interval // len(exchange.numels) + 1 if fragments > 1 else 0


def _of_the_ends(situation: Situation, uses: tuple[LinkUse, ...]) -> Iterator[tuple[FitKind, str]]:
    """What links and the syncer cannot do, whatever the overlap."""
    if thin := thin_text(situation, uses):
        yield FitKind.LINK_TOO_THIN, thin
    if (share := merging_share(situation)) > FULL:
        seconds = situation.merge_seconds * len(situation.exchange.numels)
        text = f"merging every fragment takes the syncer {seconds:.3g} s, {100 * share:.0f} % of an interval"
        yield FitKind.MERGES_TOO_SLOW, text


def _of_the_outcome(
    situation: Situation, outcome: Outcome | None, needed: int | None, step_seconds: float
) -> Iterator[tuple[FitKind, str]]:
    """What interval, staleness bound and overlap do not leave room for."""
    if outcome is None:
        return
    exchange, interval = situation.exchange, situation.exchange.interval
    (taken,) = [*_round(outcome, step_seconds)] or ["no round is over yet"]
    if late := [pool for pool in outcome.pools if pool.late > LATE]:
        yield _too_late(exchange, late, step_seconds)
    if outcome.pools and (worst := max(outcome.pools, key=lambda pool: pool.overwritten)).overwritten > LOST:
        text = f"a fragment is under way for {worst.overwritten * interval:.1f} of the interval's {interval} steps"
        yield FitKind.ROUND_TOO_LONG, f"{text} of {step_seconds:.3g} s at {worst.name}, so most of its work is lost"
    # With all learners in the quorum they are meant to wait until the round is over.
    if exchange.staleness_bound_steps is not None and exchange.quorum < situation.learners:
        waiting = max((pool.waiting for pool in outcome.pools), default=0.0)
        slack = exchange.staleness_bound_steps - interval
        if waiting > PAUSE:
            text = f"{taken}, and the staleness bound leaves {slack} beyond the interval, so learners pause"
            yield FitKind.STALENESS_BOUND_TOO_LOW, f"{text} for {100 * waiting:.0f} % of the time"
    due = outcome.seconds / (interval * step_seconds) * len(exchange.numels)
    short = exchange.overlap is not None and needed is not None and exchange.overlap < needed
    if short and outcome.merges < PACE * due:
        text = f"{taken} and needs an overlap of {needed}, not {exchange.overlap}"
        yield FitKind.OVERLAP_TOO_SHORT, f"{text}: {100 * outcome.merges / due:.0f} % of the merges are made"


def _too_late(exchange: Exchange, late: list[PoolOutcome], step_seconds: float) -> tuple[FitKind, str]:
    whose, share = listed([pool.name for pool in late][:_MOST_NAMES], "and"), max(pool.late for pool in late)
    text = f"answers of {whose} come too late for a round to wait for at an interval of {exchange.interval} steps"
    after = max((pool.answer_seconds or 0.0) / step_seconds - pool.lead_steps for pool in late)
    if exchange.overlap is not None and exchange.overlap < after <= exchange.longest_overlap:
        text = (
            f"answers of {whose} come {after:.1f} steps after a launch, too late for an overlap of {exchange.overlap}"
        )
        return FitKind.OVERLAP_TOO_SHORT, f"{text}: {100 * share:.0f} % of their work is left out"
    return FitKind.ROUND_TOO_LONG, f"{text}: {100 * share:.0f} % of their work is left out"


def _round(outcome: Outcome | None, step_seconds: float) -> Iterator[str]:
    if outcome is not None and outcome.round_seconds is not None:
        yield f"a round takes {outcome.round_seconds / step_seconds:.1f} steps of {step_seconds:.3g} s"


def _used(uses: tuple[LinkUse, ...]) -> str:
    fullest = max(uses, key=lambda use: use.share)
    used = f"the fullest link, {fullest.name}, is used to {100 * fullest.share:.0f} %"
    return used if fullest.share else "no link limits it"
