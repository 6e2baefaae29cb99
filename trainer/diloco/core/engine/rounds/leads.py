"""How many inner steps ahead each learner is asked, so that far and thin links do not keep the others waiting.

A learner that takes long to answer can be asked early, by a number of steps called its *lead*: then it sends an older
outer gradient, and its own steps during the lead are lost. Or the round can wait for it: then every learner loses that
time. So the leads follow from one choice for all, the moment T after the launch at which answers are expected. With
``x`` the usual time to answer in steps and ``v`` a learner's speed, T costs ``T * sum(v)``, and a learner whose ``x``
is later than T costs ``v * ceil(x - T)``. The best T is 0 or the part of some ``x`` beyond a whole step (ours).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor
from typing import NamedTuple

HEADROOM_DEVIATIONS = 2.0
"""A learner's usual time is taken as longer by this many mean deviations (ours); a wait allows twice as many."""

_ROUNDING = 1e-9
"""Of a step: a quotient that should be whole may be this far from it."""


class AnswerTime(NamedTuple):
    """How long a learner takes from the request to its complete payload, and the tokens it trains in that time."""

    seconds: float
    deviation_seconds: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Leads:
    """How early to ask each learner."""

    expected_seconds: float
    """T: when answers are expected, in seconds after a launch."""
    steps: Mapping[str, int]
    """By learner: inner steps of the quorum's slowest learner before the launch. Learners without one: 0."""


def best_leads(times: Mapping[str, AnswerTime], step_seconds: float, maximum_steps: int) -> Leads:
    """The leads that lose the fewest tokens, none longer than ``maximum_steps``, for the measured learners."""
    if not times or step_seconds <= 0:
        return Leads(0.0, {})
    in_steps = {
        name: (time.seconds + HEADROOM_DEVIATIONS * time.deviation_seconds) / step_seconds
        for name, time in times.items()
    }
    rests = sorted([(max(0.0, steps - floor(steps + _ROUNDING)), name) for name, steps in in_steps.items()])
    speed = sum([time.tokens_per_second for time in times.values()])
    # T = 0: a learner with a fractional rest is asked a whole step earlier. Each larger T spares rests up to it.
    spared = 0.0
    best, best_cost = 0.0, sum([times[name].tokens_per_second for rest, name in rests if rest > 0])
    total = best_cost
    for rest, name in rests:
        spared += times[name].tokens_per_second if rest > 0 else 0.0
        cost = rest * speed + total - spared
        if cost < best_cost:
            best, best_cost = rest, cost
    steps = {
        name: min(maximum_steps, max(0, ceil(value - best - _ROUNDING))) for name, value in sorted(in_steps.items())
    }
    return Leads(best * step_seconds, steps)
