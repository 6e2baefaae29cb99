"""Finds changes that would make overlap, interval and links fit together (ours).

A remedy is a change after which the situation fits, by the same closed form. It changes one thing, and sets the overlap
to Auto as well if the configured one stands in the way. Pure.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import Any, Final

from diloco.plan.fit.fit import FULL, Fit, FitKind, fit
from diloco.plan.fit.situation import DOWNLINKS, UPLINKS, Link, Situation, rate_text
from diloco.spec.words import listed

LONGEST_INTERVAL: Final = 1_000_000
MOST_CONNECTIONS: Final = 64
"""Of a learner, in a manifest."""
SHORTEST_STEP_SECONDS: Final = 1e-4
_MOST_TIMES: Final = 1e6
"""Most times by which links are made faster or steps longer."""
_PRECISE: Final = 1.005
"""Precision, as a ratio, of rates and step times."""


class RemedyKind(StrEnum):
    """What is changed."""

    OVERLAP = "Overlap"
    STALENESS_BOUND = "StalenessBound"
    CONNECTIONS = "Connections"
    ENCODING = "Encoding"
    INTERVAL = "Interval"
    RATE = "Rate"
    STEP_TIME = "StepTime"


@dataclass(frozen=True, slots=True)
class Setting:
    """Another value of a field of the manifest."""

    field: str
    value: str | int | float

    def __str__(self) -> str:
        return f"{self.field}: {self.value}"


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


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change after which the situation fits."""

    kind: RemedyKind
    changes: tuple[Setting | LinkRate | StepTime, ...]
    situation: Situation

    @property
    def fit(self) -> Fit:
        """The fit of the changed situation."""
        return fit(self.situation)

    def __str__(self) -> str:
        return listed(self.changes, "and")


def remedies(situation: Situation) -> tuple[Remedy, ...]:
    """One of each kind that exists and is worth its cost, the cheapest first.

    Empty if the situation fits, or if no step time is known.
    """
    result = fit(situation)
    if result.fits or result.kind is FitKind.STEP_TIME_UNKNOWN:
        return ()
    for free in (_overlap, _staleness_bound):
        # It costs nothing, so that costlier ones need not be mentioned.
        if (remedy := free(situation, result)) is not None:
            return (remedy,)
    more, wide = _connections(situation, result)
    result = fit(wide)
    if result.fits:
        return (Remedy(RemedyKind.CONNECTIONS, more, wide),)
    searches = (_encoding, _interval, _rate, _step_time)
    found = (remedy for search in searches if (remedy := search(wide, result)) is not None)
    return tuple(replace(remedy, changes=(*more, *remedy.changes)) for remedy in found)


def smallest_step_seconds(situation: Situation) -> float | None:
    """The shortest inner step, the same for all learners, at which the situation fits; None: there is none."""
    factor = _smallest_factor(lambda factor: with_steps(situation, factor * SHORTEST_STEP_SECONDS), 1e10)
    return None if factor is None else factor * SHORTEST_STEP_SECONDS


def with_steps(situation: Situation, seconds: float) -> Situation:
    """The situation with inner steps of this duration everywhere."""
    return replace(situation, groups=tuple(replace(group, step_seconds=seconds) for group in situation.groups))


def _overlap(situation: Situation, result: Fit) -> Remedy | None:
    """The overlap that the engine would choose; if that is too short, every overlap is."""
    if result.kind is not FitKind.OVERLAP_TOO_SHORT:
        return None
    *_, (changes, base) = _bases(situation)
    return Remedy(RemedyKind.OVERLAP, changes, base) if fit(base).fits else None


def _staleness_bound(situation: Situation, result: Fit) -> Remedy | None:
    bound = situation.exchange.staleness_bound_steps
    if bound is None or result.kind is not FitKind.STALENESS_BOUND_TOO_LOW:
        return None
    for changes, base in _bases(situation):

        def change(steps: int, base: Situation = base) -> Situation:
            return _set(base, staleness_bound_steps=steps)

        steps = _smallest(change, bound + 1, bound + 2 * situation.exchange.interval)
        if steps is not None:
            setting = Setting("sync.maxStalenessSteps", steps)
            return Remedy(RemedyKind.STALENESS_BOUND, (setting, *changes), change(steps))
    return None


def _connections(situation: Situation, result: Fit) -> tuple[tuple[Setting, ...], Situation]:
    """As many connections as make it fit, or as thin links take. None, if others are the limit."""
    thin = {use.name for use in result.links if use.too_thin}

    def change(connections: int) -> Situation:
        groups = (
            replace(group, link=group.link.with_connections(connections))
            if not thin or group.link.name in thin
            else group
            for group in situation.groups
        )
        return replace(situation, groups=tuple(groups))

    found = _smallest(change, 1, MOST_CONNECTIONS)
    if found is None and not thin:
        return (), situation
    wide = change(found or MOST_CONNECTIONS)
    pairs = zip(situation.links, wide.links, strict=True)
    settings = (
        Setting(f"regions[{link.name}].connections", link.connections)
        for (before, _), (link, _) in pairs
        if link.connections is not None and link != before
    )
    return tuple(settings), wide


def _encoding(situation: Situation, result: Fit) -> Remedy | None:
    """The widest encodings that fit; outer gradients are narrowed first, as error feedback makes up for it.

    If links are too thin for any of them: the narrowest, with the smallest interval that fits.
    """
    exchange = situation.exchange
    ways = list(product(_from(DOWNLINKS, exchange.downlink), _from(UPLINKS, exchange.compression)))[1:]
    for changes, base in _bases(situation):
        for down, up in ways:
            narrowed = _set(base, downlink=down, compression=up)
            if fit(narrowed).fits:
                return Remedy(RemedyKind.ENCODING, (*_encodings(situation, narrowed), *changes), narrowed)
    if not ways or result.kind is not FitKind.LINK_TOO_THIN:
        return None
    down, up = ways[-1]
    narrowed = _set(situation, downlink=down, compression=up)
    longer, alone = _interval(narrowed, fit(narrowed)), _interval(situation, result)
    if longer is None or (alone is not None and alone.changes[0] == longer.changes[0]):  # they gain nothing
        return None
    return Remedy(RemedyKind.ENCODING, (*_encodings(situation, narrowed), *longer.changes), longer.situation)


def _encodings(before: Situation, after: Situation) -> Iterator[Setting]:
    if after.exchange.compression != before.exchange.compression:
        yield Setting("sync.compression", after.exchange.compression)
    if after.exchange.downlink != before.exchange.downlink:
        yield Setting("sync.downlink", after.exchange.downlink)


def _interval(situation: Situation, result: Fit) -> Remedy | None:
    """The smallest interval that fits; the staleness bound stays as far beyond it as it is."""
    del result
    interval, bound = situation.exchange.interval, situation.exchange.staleness_bound_steps
    for changes, base in _bases(situation):

        def longer(steps: int, base: Situation = base) -> Situation:
            beyond = None if bound is None else bound + steps - interval
            return _set(base, interval=steps, staleness_bound_steps=beyond)

        steps = _smallest(longer, interval + 1, LONGEST_INTERVAL)
        if steps is None:
            continue
        settings = [Setting("sync.interval", steps)]
        if bound is not None:
            settings.append(Setting("sync.maxStalenessSteps", bound + steps - interval))
        return Remedy(RemedyKind.INTERVAL, (*settings, *changes), longer(steps))
    return None


def _rate(situation: Situation, result: Fit) -> Remedy | None:
    """Faster links: those that are too thin, or all of those whose rate is known, until it fits."""
    short = {use.name: max(use.up_share, use.down_share) / FULL for use in result.links if use.too_thin}
    limited = {link.name for link, _ in situation.links if link.limited}
    if limited & set(short):
        return None
    names = short or {use.name: 1.0 for use in result.links if use.up_share > 0 and use.name not in limited}

    def faster(factor: float) -> Situation:
        return _with_rates(situation, {name: factor * needed for name, needed in names.items()})

    factor = _smallest_factor(faster, _MOST_TIMES) if names else None
    if factor is None:
        return None
    then = faster(factor)
    rates = tuple(
        LinkRate(link.name, min(link.up_bytes_per_second, link.down_bytes_per_second))
        for link, _ in then.links
        if link.name in names
    )
    return Remedy(RemedyKind.RATE, rates, then)


def _step_time(situation: Situation, result: Fit) -> Remedy | None:
    del result

    def slower(factor: float) -> Situation:
        groups = tuple(replace(one, step_seconds=factor * (one.step_seconds or 0.0)) for one in situation.groups)
        return replace(situation, groups=groups)

    factor = _smallest_factor(slower, _MOST_TIMES)
    return None if factor is None else Remedy(RemedyKind.STEP_TIME, (StepTime(factor),), slower(factor))


def _bases(situation: Situation) -> Iterator[tuple[tuple[Setting, ...], Situation]]:
    """Starting points of a search: the situation, and the same with an overlap that the engine chooses."""
    yield (), situation
    if situation.exchange.overlap is not None:
        yield (Setting("sync.overlap", "Auto"),), _set(situation, overlap=None)


def _from(names: Any, current: str) -> list[str]:
    """The current one and narrower ones."""
    ordered = list(names)
    return ordered[ordered.index(current) :] if current in ordered else [current]


def _set(situation: Situation, **changes: Any) -> Situation:
    return replace(situation, exchange=replace(situation.exchange, **changes))


def _with_rates(situation: Situation, factors: dict[str, float]) -> Situation:
    def times(link: Link) -> Link:
        factor = factors.get(link.name, 1.0)
        up, down = factor * link.up_bytes_per_second, factor * link.down_bytes_per_second
        return replace(link, up_bytes_per_second=up, down_bytes_per_second=down)

    groups = tuple(replace(group, link=times(group.link)) for group in situation.groups)
    return replace(situation, groups=groups, syncer=times(situation.syncer))


def _smallest(change: Callable[[int], Situation], low: int, high: int) -> int | None:
    """The smallest number from ``low`` to ``high`` whose change fits, if larger ones fit where it does."""
    failed, tried, stride = low - 1, low, 1
    while not fit(change(min(tried, high))).fits:
        if tried >= high:
            return None
        failed, tried, stride = tried, tried + stride, 2 * stride
    fitting = min(tried, high)
    while fitting - failed > 1:
        middle = (failed + fitting) // 2
        failed, fitting = (failed, middle) if fit(change(middle)).fits else (middle, fitting)
    return fitting


def _smallest_factor(change: Callable[[float], Situation], high: float) -> float | None:
    """The smallest factor from 1 to ``high`` whose change fits, to the precision of ``_PRECISE``."""
    if fit(change(1.0)).fits:
        return 1.0
    failed, fitting = 1.0, 2.0
    while not fit(change(fitting)).fits:
        if fitting >= high:
            return None
        failed, fitting = fitting, 2 * fitting
    while fitting / failed > _PRECISE:
        middle = (failed * fitting) ** 0.5
        failed, fitting = (failed, middle) if fit(change(middle)).fits else (middle, fitting)
    return fitting
