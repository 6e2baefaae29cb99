"""Changes of a job or its links, and those after which bytes fit their links. Arithmetic; pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, product
from math import ceil
from typing import Any, Final

from diloco.plan.links import FULL, LinkUse, link_uses, merging_share
from diloco.plan.situation import DOWNLINKS, UPLINKS, Situation, rate_text
from diloco.plan.verdict import LOST, Fit, FitKind

LONGEST_INTERVAL: Final = 1_000_000
FEWEST_INTERVALS: Final = 4
"""A job with fewer of them has no forecast, and no remedy leaves it fewer (ours)."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Another value of a field of the manifest."""

    field: str
    value: str | int | float | None
    """None: remove the field."""

    def __str__(self) -> str:
        return f"no {self.field}" if self.value is None else f"{self.field}: {self.value}"


@dataclass(frozen=True, slots=True)
class LinkRate:
    """Another link."""

    link: str
    bytes_per_second: float

    def __str__(self) -> str:
        return f"{rate_text(self.bytes_per_second)} on the link {self.link}"


@dataclass(frozen=True, slots=True)
class StepTime:
    """Longer inner steps, as by a larger batch."""

    factor: float

    def __str__(self) -> str:
        return f"inner steps {self.factor:.3g} times as long, as by a larger batch"


Change = Setting | LinkRate | StepTime


def times_too_much(situation: Situation) -> float:
    """How many times as much as they can the fullest link carries, or the syncer merges; 1 and less: it fits."""
    return max(*(use.share for use in link_uses(situation)), merging_share(situation), 0.0) / FULL


def encodings(situation: Situation) -> Iterator[tuple[Setting, ...]]:
    """Narrower encodings that the links carry, the widest first.

    Outer gradients are narrowed first, as error feedback makes up for it.
    """
    exchange = situation.exchange
    ways = product(_from(DOWNLINKS, exchange.downlink), _from(UPLINKS, exchange.compression))
    for down, up in [*ways][1:]:
        narrowed = replace(situation, exchange=replace(exchange, downlink=down, compression=up))
        if times_too_much(narrowed) <= 1:
            yield tuple(_encodings(exchange.compression, exchange.downlink, up, down))


def narrowest(situation: Situation) -> tuple[Setting, ...]:
    """The narrowest encodings."""
    exchange = situation.exchange
    up = _from(UPLINKS, exchange.compression)[-1]
    return tuple(_encodings(exchange.compression, exchange.downlink, up, _from(DOWNLINKS, exchange.downlink)[-1]))


def interval_for(situation: Situation) -> int:
    """The least interval with which bytes fit their links, and merges into it."""
    return max(1, ceil(situation.exchange.interval * times_too_much(situation) - 1e-9))


def interval_settings(situation: Situation, steps: int) -> tuple[Setting, ...]:
    """That interval; the staleness bound stays as far beyond it as it is."""
    bound = situation.exchange.staleness_bound_steps
    longer = Setting("sync.interval", steps)
    if bound is None:
        return (longer,)
    return longer, Setting("sync.maxStalenessSteps", bound + steps - situation.exchange.interval)


def rates_for(situation: Situation, factor: float = 1.0) -> tuple[LinkRate, ...]:
    """Just enough for each link that is too thin, times ``factor``; without one, all known rates times ``factor``.

    None for links that connections limit: a faster one would carry no more.
    """
    uses = [(use, link) for use, (link, _) in zip(link_uses(situation), situation.links, strict=True)]
    thin = [(use, link) for use, link in uses if use.too_thin]
    if any(link.limited for _, link in thin):
        return ()
    known = [(use, link) for use, link in uses if use.share > 0 and not link.limited]
    return tuple(
        LinkRate(link.name, factor * _times(use) * min(link.up_bytes_per_second, link.down_bytes_per_second))
        for use, link in thin or known
    )


def _times(use: LinkUse) -> float:
    return use.share / FULL if use.too_thin else 1.0


def measured_remedies(situation: Situation, found: Fit, budget_tokens: int) -> Iterator[tuple[Change, ...]]:
    """Changes that arithmetic on measured values finds, for a running job; each on its own.

    No longer interval or step is among them that leaves a job of this budget too few intervals.
    """
    exchange, outcome = situation.exchange, found.outcome
    longest_interval = budget_tokens / situation.tokens_in_a_step / FEWEST_INTERVALS
    if found.kind is FitKind.OVERLAP_TOO_SHORT:
        yield (Setting("sync.overlap", "Auto"),)
    elif found.kind in (FitKind.LINK_TOO_THIN, FitKind.MERGES_TOO_SLOW):
        yield from islice(encodings(situation), 1)
        if (interval := interval_for(situation)) <= longest_interval:
            yield interval_settings(situation, interval)
        if rates := rates_for(situation):
            yield rates
        if exchange.interval * (times := times_too_much(situation)) <= longest_interval:
            yield (StepTime(times),)
    elif found.kind is FitKind.STALENESS_BOUND_TOO_LOW and found.round_steps:
        yield (Setting("sync.maxStalenessSteps", exchange.interval + ceil(found.round_steps)),)
    elif outcome is not None:
        lost = max((pool.overwritten for pool in outcome.pools), default=0.0)
        if lost > LOST and (interval := ceil(exchange.interval * lost / LOST)) <= longest_interval:
            yield interval_settings(situation, interval)


def _from(names: Any, current: str) -> list[str]:
    """The current one and narrower ones."""
    ordered = list(names)
    return ordered[ordered.index(current) :] if current in ordered else [current]


def _encodings(compression: str, downlink: str, up: str, down: str) -> Iterator[Setting]:
    if up != compression:
        yield Setting("sync.compression", up)
    if down != downlink:
        yield Setting("sync.downlink", down)
