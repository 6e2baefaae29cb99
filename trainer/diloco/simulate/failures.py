"""How a learner of many chips fails: slices are lost and come back, and the whole learner may be preempted.

A learner computes with the slices that it has. It pauses after each loss to continue without the slice, and once more
when all lost slices are back. A learner that loses its last slice loses its process, and waits until all are back.
Nothing fails while the learner stands still. Pure: a seed in, standstills out.
"""

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final

from diloco.simulate.checks import ScenarioError, above_zero, at_least, finite

_LARGEST: Final = 6.0
"""Natural logarithm of the largest ``(x/scale)^shape`` that counts for a mean: a chance of e^-400."""


class Cause(StrEnum):
    """Why a learner stands still."""

    PAUSE_DOWN = "pause down"
    """It continues without a lost slice."""
    PAUSE_UP = "pause up"
    """It takes back all lost slices."""
    LOST = "lost"
    """No slice was left. The time includes both pauses."""
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True)
class Standstill:
    """A stretch of time in which a learner does not compute."""

    at_seconds: float
    seconds: float
    cause: Cause

    @property
    def ends_process(self) -> bool:
        """Whether the learner's process ends, and loses what it has not sent."""
        return self.cause in (Cause.LOST, Cause.PREEMPTED)


@dataclass(frozen=True, slots=True)
class Absence:
    """How long something is away, an exponentiated Weibull distribution: ``F(x) = (1 - exp(-(x/scale)^shape))^power``.

    Shape and power 1: an exponential distribution.
    """

    mean_seconds: float
    shape: float = 1.0
    power: float = 1.0

    def __post_init__(self) -> None:
        finite("mean_seconds", self.mean_seconds)
        # A tenth: quantiles of wider distributions overflow.
        at_least(0.1, "shape", self.shape)
        at_least(0.1, "power", self.power)

    def draws(self, draw: random.Random) -> Iterator[float]:
        """Seconds, one after the other."""
        scale_seconds = self.mean_seconds / _mean(self.shape, self.power)
        while True:
            yield scale_seconds * _quantile(draw.random(), self.shape, self.power)


def _quantile(probability: float, shape: float, power: float) -> float:
    """At a scale of 1."""
    return float((-math.log1p(-(probability ** (1 / power)))) ** (1 / shape))


@cache
def _mean(shape: float, power: float) -> float:
    """At a scale of 1, by the trapezoidal rule over ``y``: ``(x/scale)^shape = exp(y)``.

    Over quantiles it misses most of the mean of a wide distribution, which a few long absences make up.
    """
    begin, parts = -50 / (power + 1 / shape), 20_000
    width = (_LARGEST - begin) / parts

    def at(y: float) -> float:
        grown = math.exp(y)
        return math.exp(y * (1 + 1 / shape) - grown + (power - 1) * math.log(-math.expm1(-grown)))

    return power * width * math.fsum(at(begin + part * width) for part in range(parts))


@dataclass(frozen=True, slots=True)
class Failures:
    """What makes a learner stand still."""

    chips: int = 1
    slice_chips: int = 1
    """Chips that are lost together. As many as ``chips``: no elasticity, each loss stops the learner."""
    chip_interruption_seconds: float = math.inf
    """Mean time between two interruptions of a chip (MTBI)."""
    pause_down_seconds: float = 0.0
    pause_up_seconds: float = 0.0
    recovery: Absence = Absence(0.0)
    """Of a slice. It begins with the loss, but after the pause if no slice is left."""
    preemption_seconds: float = math.inf
    """Mean time between two preemptions of the learner, in computing time."""
    preempted: Absence = Absence(0.0)

    def __post_init__(self) -> None:
        for name in ("chips", "slice_chips", "chip_interruption_seconds", "preemption_seconds"):
            above_zero(name, getattr(self, name))
        for name in ("pause_down_seconds", "pause_up_seconds"):
            finite(name, getattr(self, name))
        if self.slice_chips > self.chips:
            raise ScenarioError(f"slice_chips is {self.slice_chips}: it must be at most chips, {self.chips}")

    @property
    def slices(self) -> int:
        """Number of slices; the last one may be smaller."""
        return -(-self.chips // self.slice_chips)


def standstills(failures: Failures, seed: str) -> Iterator[Standstill]:
    """Every standstill of a learner that begins to compute at 0, by time; endless if anything can fail.

    The result depends on the arguments alone. Use a ``seed`` for each learner, such as its id and the run's seed.
    """
    draw = random.Random(f"failures/{seed}")  # noqa: S311 - a scenario, no secret
    slices = failures.slices
    losses_per_second = failures.chips / failures.chip_interruption_seconds
    recoveries, preempted = failures.recovery.draws(draw), failures.preempted.draws(draw)
    both_pauses_seconds = failures.pause_down_seconds + failures.pause_up_seconds
    now, away = 0.0, list[float]()  # when each lost slice is back
    while True:
        # Both are memoryless, so they can be drawn again after each change.
        loss = now + _exponential(draw, losses_per_second * (1 - len(away) / slices))
        preemption = now + _exponential(draw, 1 / failures.preemption_seconds)
        back = max(now, away[0]) if away else math.inf
        at = min(loss, preemption, back)
        if at == math.inf:
            return
        if at == back:
            heapq.heappop(away)
            if away:
                now = at
                continue
            stop = Standstill(at, failures.pause_up_seconds, Cause.PAUSE_UP)
        elif at == preemption:
            away.clear()
            stop = Standstill(at, next(preempted), Cause.PREEMPTED)
        else:
            heapq.heappush(away, at + next(recoveries))
            stop = Standstill(at, failures.pause_down_seconds, Cause.PAUSE_DOWN)
            if len(away) == slices:
                stop = Standstill(at, max(away) - at + both_pauses_seconds, Cause.LOST)
                away.clear()
        yield stop
        now = at + stop.seconds


def _exponential(draw: random.Random, per_second: float) -> float:
    return draw.expovariate(per_second) if per_second > 0 else math.inf
