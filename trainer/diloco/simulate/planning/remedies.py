"""Finds changes after which a job fits, by trying them: a remedy is one whose short simulation fits (ours).

Arithmetic says where to begin: with the interval, rate or step time at which bytes fit their links. No longer interval
or step is a remedy that leaves the job too few intervals.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from math import ceil
from typing import Final

from diloco.plan.changes import (
    LONGEST_INTERVAL,
    Change,
    Setting,
    StepTime,
    encodings,
    interval_for,
    interval_settings,
    narrowest,
    rates_for,
    times_too_much,
)
from diloco.plan.links import FULL, link_uses
from diloco.plan.verdict import Fit, FitKind
from diloco.simulate.planning.case import Case
from diloco.simulate.planning.trial import fit_of
from diloco.spec.words import listed
from diloco.world.rates import connections_for

MOST_CONNECTIONS: Final = 64
"""Of a learner, in a manifest."""
SHORTEST_STEP_SECONDS: Final = 1e-4
_MOST_ENCODINGS: Final = 2
_MOST_TIMES: Final = 1e6
"""Most times by which links are made faster, or steps or intervals longer."""
_JUST_ENOUGH: Final = 1.001
"""Against rounding: times the rate or the step time at which bytes just fit."""
_MORE: Final = 1.2
"""Times the rate or the step time with which to begin where bytes fit already."""
_MOST_TRIALS: Final = 5
"""For one number."""
_PRECISE: Final = 1.1
"""Ratio of a number that fits to one that does not, at which the search for it ends."""


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
class Remedy:
    """A change after which the job fits."""

    kind: RemedyKind
    changes: tuple[Change, ...]
    fit: Fit
    """With the change."""

    def __str__(self) -> str:
        return listed(self.changes, "and")


def remedies(case: Case, found: Fit) -> tuple[Remedy, ...]:
    """One of each kind that exists and is worth its cost, the cheapest first; none if the case fits.

    ``found``: the fit of the case.
    """
    if found.fits or found.kind in (FitKind.STEP_TIME_UNKNOWN, FitKind.NOT_SIMULATED):
        return ()
    free = _overlap(case, found) or _staleness_bound(case, found)
    if free is not None:
        return (free,)  # it costs nothing, so that costlier ones need not be mentioned
    more = _connections(case)
    if more:
        case = case.changed(more)
        found = fit_of(case)
        if found.fits:
            return (Remedy(RemedyKind.CONNECTIONS, more, found),)
    tries = (_encoding(case, found), _interval(case), _rate(case), _step_time(case))
    return tuple(Remedy(one.kind, (*more, *one.changes), one.fit) for one in tries if one)


def smallest_step_seconds(case: Case) -> float | None:
    """The shortest inner step, the same for all learners, at which the case fits; None: there is none."""
    shortest = case.with_steps(SHORTEST_STEP_SECONDS)
    begin = _JUST_ENOUGH * max(1.0, times_too_much(shortest.situation))
    found = _smallest(
        lambda factor: ((), shortest.with_steps(factor * SHORTEST_STEP_SECONDS)), begin, _MOST_TIMES * begin
    )
    return None if found is None else found[0] * SHORTEST_STEP_SECONDS


def _tried(kind: RemedyKind, case: Case, changes: Sequence[Change]) -> Remedy | None:
    found = fit_of(case.changed(changes))
    return Remedy(kind, tuple(changes), found) if found.fits else None


def _overlap(case: Case, found: Fit) -> Remedy | None:
    """The overlap that the engine would choose; if that is too short, every overlap is."""
    if found.kind is not FitKind.OVERLAP_TOO_SHORT:
        return None
    return _tried(RemedyKind.OVERLAP, case, (Setting("sync.overlap", "Auto"),))


def _staleness_bound(case: Case, found: Fit) -> Remedy | None:
    exchange = case.situation.exchange
    if found.kind is not FitKind.STALENESS_BOUND_TOO_LOW:
        return None
    steps = exchange.interval + ceil(found.round_steps or 0.0)
    tries = (_tried(RemedyKind.STALENESS_BOUND, case, (one,)) for one in _bounds(steps, 2 * exchange.interval))
    return next((one for one in tries if one), None)


def _bounds(least: int, more: int) -> Iterator[Setting]:
    added = 0
    while added <= more:
        yield Setting("sync.maxStalenessSteps", least + added)
        added = 2 * added + 1


def _connections(case: Case) -> tuple[Setting, ...]:
    """As many as links that connections limit need for their bytes, or take at most."""
    uses = zip(link_uses(case.situation), case.situation.links, strict=True)
    return tuple(
        Setting(f"regions[{link.name}].connections", min(MOST_CONNECTIONS, needed))
        for use, (link, learners) in uses
        if use.too_thin and link.limited and link.connections is not None
        for rate in [min(link.link_bytes_per_second, use.share / FULL * link.up_bytes_per_second)]
        if (needed := connections_for(rate / learners, link.round_trip_seconds)) > link.connections
    )


def _encoding(case: Case, found: Fit) -> Remedy | None:
    """The widest encodings that fit; if links are too thin for all, the narrowest with the interval that then fits."""
    for changes in islice(encodings(case.situation), _MOST_ENCODINGS):
        if (one := _tried(RemedyKind.ENCODING, case, changes)) is not None:
            return one
    changes = narrowest(case.situation)
    if not changes or found.kind is not FitKind.LINK_TOO_THIN:
        return None
    narrowed = case.changed(changes)
    if times_too_much(narrowed.situation) <= 1:
        return None
    longer = _interval(narrowed)
    return None if longer is None else Remedy(RemedyKind.ENCODING, (*changes, *longer.changes), longer.fit)


def _interval(case: Case) -> Remedy | None:
    situation = case.situation

    def longer(steps: float) -> tuple[Sequence[Change], Case]:
        changes = interval_settings(situation, ceil(steps))
        return changes, case.changed(changes)

    begin = max(interval_for(situation), situation.exchange.interval + 1)
    return _remedy(RemedyKind.INTERVAL, longer, begin, min(LONGEST_INTERVAL, case.longest_interval))


def _rate(case: Case) -> Remedy | None:
    situation = case.situation
    if not rates_for(situation):
        return None

    def faster(factor: float) -> tuple[Sequence[Change], Case]:
        rates = rates_for(situation, factor)
        changes: tuple[Change, ...] = (*rates, *_connections(case.changed(rates)))
        return changes, case.changed(changes)

    return _remedy(RemedyKind.RATE, faster, _JUST_ENOUGH if times_too_much(situation) > 1 else _MORE, _MOST_TIMES)


def _step_time(case: Case) -> Remedy | None:
    def slower(factor: float) -> tuple[Sequence[Change], Case]:
        changes = (StepTime(factor),)
        return changes, case.changed(changes)

    times = times_too_much(case.situation)
    begin = _JUST_ENOUGH * times if times > 1 else _MORE
    # A larger batch has fewer steps.
    most = case.longest_interval / case.spec.sync.interval
    return _remedy(RemedyKind.STEP_TIME, slower, begin, min(_MOST_TIMES, most))


_Way = Callable[[float], tuple[Sequence[Change], Case]]


def _remedy(kind: RemedyKind, way: _Way, begin: float, end: float) -> Remedy | None:
    found = _smallest(way, begin, end)
    if found is None:
        return None
    number, then = found
    return Remedy(kind, tuple(way(number)[0]), then)


def _smallest(way: _Way, begin: float, end: float) -> tuple[float, Fit] | None:
    """About the smallest number from ``begin`` on whose case fits, with the fit, if larger ones fit where it does."""
    if begin > end:
        return None
    failed, number, fitting = 0.0, begin, None
    for _ in range(_MOST_TRIALS):
        found = fit_of(way(number)[1])
        if found.fits:
            fitting = number, found
        else:
            failed = number
        if fitting is None:
            if number >= end:
                break
            number = min(end, 2 * number)
        elif not failed or fitting[0] / failed <= _PRECISE:
            break
        else:
            number = (failed * fitting[0]) ** 0.5
    return fitting
