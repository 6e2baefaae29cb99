"""Goodput under failures: closed forms, the failures themselves, and the engine that runs a job through them.

Chips are interrupted once a year. With l interruptions of all chips a second, pauses Td down and Tu up, and a recovery
of R seconds:

    not elastic    G = 1 / (1 + l (Td + R + Tu))
    elastic        G = 1 / (1 + l (Td + Tu exp(-l R G)))    it pauses up once no lost slice is missing

M learners are M independent elastic units of N / M chips. The pauses are calibrated, not realistic: they are fitted to
the two data-parallel rows, and nothing is fitted to the decoupled ones.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product, takewhile
from typing import Final

from diloco.simulate.failures import Absence, Failures, Standstill, standstills
from diloco.simulate.published.job import IDEAL, job_of
from diloco.simulate.published.tables import CHIPS, DATA_PARALLEL, ELASTIC
from diloco.simulate.scenario import Profile, Scenario
from diloco.simulate.training.counted import layout_of_sizes
from diloco.simulate.world import simulate_course

YEAR_SECONDS: Final = 365 * 86_400
SLICE_CHIPS: Final = 256
"""Inferred. So many slices are left of each learner that their size does not matter."""
_STEP_SECONDS: Final = 20.0
_FRAGMENTS: Final = 24


@dataclass(frozen=True, slots=True)
class Pauses:
    """What a lost slice costs its learner."""

    down_seconds: float
    recovery_seconds: float
    up_seconds: float


CALIBRATED: Final = Pauses(16.0, 48.0, 14.0)
"""What ``fitted`` finds."""
USUAL: Final = Pauses(30.0, 600.0, 30.0)
"""What a cluster may need: half a minute for each pause, ten minutes until a slice is back."""


def data_parallel(chips: int, pauses: Pauses) -> float:
    """Goodput of one unit that stops until a lost slice is back."""
    return 1 / (1 + _lost(chips) * (pauses.down_seconds + pauses.recovery_seconds + pauses.up_seconds))


def elastic(chips: int, pauses: Pauses) -> float:
    """Goodput of one unit that continues without its lost slices."""
    lost, low, high = _lost(chips), 0.0, 1.0
    for _ in range(50):  # the right side is above G at 0 and not above it at 1
        goodput = (low + high) / 2
        missing = math.exp(-lost * pauses.recovery_seconds * goodput)
        if goodput < 1 / (1 + lost * (pauses.down_seconds + pauses.up_seconds * missing)):
            low = goodput
        else:
            high = goodput
    return low


def decoupled(learners: int, chips: int, pauses: Pauses) -> float:
    """Goodput of learners that share the chips."""
    return elastic(chips // learners, pauses)


def fitted() -> Pauses:
    """The pauses with the least squares of differences to the two data-parallel rows, in whole seconds.

    A search that halves its step from 16 s to 1/64 s.
    """
    best, step = (30.0, 30.0, 30.0), 16.0
    while step >= 1 / 64:
        moves = (tuple(max(0.0, one + step * by) for one, by in zip(best, way, strict=True)) for way in _WAYS)
        found = min(moves, key=_squares)
        if _squares(found) < _squares(best):
            best = (found[0], found[1], found[2])
        else:
            step /= 2
    return Pauses(*(float(round(one)) for one in best))


_WAYS: Final = tuple(product((-1, 0, 1), repeat=3))


def _squares(seconds: tuple[float, ...]) -> float:
    pauses = Pauses(*seconds)
    rows = ((data_parallel, DATA_PARALLEL), (elastic, ELASTIC))
    return math.fsum(
        (100 * form(chips, pauses) - printed) ** 2
        for form, row in rows
        for chips, printed in zip(CHIPS, row, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Happened:
    """Shares of time."""

    goodput: float
    uptime: float
    """At least one learner computes."""


def from_failures(learners: int, chips: int, pauses: Pauses, seconds: float, *, whole: bool = False) -> Happened:
    """Draw every failure for ``seconds``; ``whole``: a learner is a single slice, as without elasticity."""
    what = failures_of(chips // learners, pauses, whole=whole)
    stops = [takewhile(lambda stop: stop.at_seconds < seconds, standstills(what, f"{one}")) for one in range(learners)]
    lost = down = since = 0.0
    standing = 0
    for at, by in heapq.merge(*(_edges(one, seconds) for one in stops)):
        lost += standing * (at - since)
        down += (standing == learners) * (at - since)
        standing, since = standing + by, at
    return Happened(1 - lost / (learners * seconds), 1 - down / seconds)


def _edges(stops: Iterator[Standstill], until_seconds: float) -> Iterator[tuple[float, int]]:
    for stop in stops:
        yield stop.at_seconds, 1
        yield min(until_seconds, stop.at_seconds + stop.seconds), -1


def failures_of(chips: int, pauses: Pauses, *, whole: bool = False) -> Failures:
    """The failures of a unit of so many chips."""
    return Failures(
        chips,
        chips if whole else SLICE_CHIPS,
        YEAR_SECONDS,
        pauses.down_seconds,
        pauses.up_seconds,
        Absence(pauses.recovery_seconds),
    )


@dataclass(frozen=True, slots=True)
class Engine:
    """What the engine makes of a job through failures."""

    computing: float
    """Goodput: share of the learners' time in inner steps."""
    merged: float
    """Share of the learners' time whose work is in the model."""


def through_engine(learners: int, chips: int, pauses: Pauses, seconds: float) -> Engine:
    """Run a job of P = H = 24 and K = 1 for so much virtual time, on ideal links."""
    job = job_of(learners, {"fragments": _FRAGMENTS, "interval": _FRAGMENTS, "quorum": 1})
    what = failures_of(chips // learners, pauses)
    scenario = Scenario(default=Profile(_STEP_SECONDS, link=IDEAL), failures=dict.fromkeys(job.spec.learner_ids, what))
    view = simulate_course(job, scenario, layout_of_sizes([1000] * _FRAGMENTS), seconds).view
    assert view.goodput is not None
    assert view.merged is not None
    return Engine(view.goodput, view.merged)


def _lost(chips: int) -> float:
    """Interruptions a second."""
    return chips / YEAR_SECONDS
