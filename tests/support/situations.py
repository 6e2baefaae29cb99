"""Situations: four learners with a link each, and ways to change that."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from diloco.plan.situation import SYNCER_LINK, Exchange, LearnerGroup, Link, Situation

EVEN = (4000,) * 24
"""Fragments of equal size."""
NEEDED = 4 * 4000 / 0.5
"""Bytes a second that ``EVEN`` takes on its way down, as f32, with steps of half a second."""


def link(name: str, rate: float = math.inf, round_trip_seconds: float = 0.01) -> Link:
    """The same rate both ways, in bytes a second."""
    return Link(name, rate, rate, round_trip_seconds)


def situation(
    *,
    steps: Sequence[float | None] = (0.5,) * 4,
    rates: Sequence[float] | float = math.inf,
    round_trips: Sequence[float] | float = 0.01,
    syncer_rate: float = math.inf,
    **exchange: Any,
) -> Situation:
    """A learner for each of ``steps``, behind a link of its own."""
    count = len(steps)
    each_rate = [rates] * count if isinstance(rates, float) else list(rates)
    each_round_trip = [round_trips] * count if isinstance(round_trips, float) else list(round_trips)
    defaults: dict[str, Any] = {
        "numels": EVEN,
        "interval": 24,
        "overlap": None,
        "staleness_bound_steps": None,
        "quorum": 1,
        "compression": "BF16",
        "downlink": "F32",
    }
    groups = tuple(
        LearnerGroup(f"r{index}/p", 1, link(f"r{index}", each_rate[index], each_round_trip[index]), step)
        for index, step in enumerate(steps)
    )
    own = Link(SYNCER_LINK, syncer_rate, syncer_rate)
    return Situation(Exchange(**(defaults | exchange)), groups, own, merge_seconds=0.005)


def between(*uses: tuple[float, float]) -> Situation:
    """Learners with a link each, of which these shares are used up and down."""
    world = situation(compression="None")
    rates = [[math.inf if use == 0 else NEEDED / use for use in ways] for ways in uses]
    links = [Link(f"r{at}", up, down) for at, (up, down) in enumerate(rates)]
    return replace(world, groups=tuple(replace(world.groups[at], link=link) for at, link in enumerate(links)))
