"""What ordinary data-parallel training would ask of the same links: one all-reduce of all gradients a step.

A ring that passes through the regions one after the other, which is the least that any all-reduce takes (Patarasuk and
Yuan 2009): whoever is in it sends and receives 2 (M - 1) / M of the gradients. Only links between regions count.
"""

import math
from dataclasses import dataclass
from typing import Final

from diloco.core.links import Situation

GRADIENT_BYTES: Final = 2
"""Of one parameter: gradients as bf16, half of what they are by default, in favor of data-parallel."""


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Data-parallel training beside decoupled."""

    step_bytes: float
    """Each learner moves so much each way in a step; a link between regions carries it once."""
    decoupled_step_bytes: float
    """A learner's outer gradients, in a step of decoupled training, on average."""
    all_reduce_seconds: float
    """Over the slowest link; 0 where no link limits it."""
    slowdown: float | None
    """At least so many times longer is a step, with all of the all-reduce behind the computation. None: not known."""


def data_parallel(situation: Situation) -> DataParallel | None:
    """What it would take; None for learners that have no link between them: of one region, or one alone."""
    links = {group.link.name: group.link for group in situation.groups}
    if len(links) < 2:
        return None
    exchange, learners = situation.exchange, situation.learners
    step_bytes = 2 * (learners - 1) / learners * sum(exchange.numels) * GRADIENT_BYTES
    slowest = min(min(link.up_bytes_per_second, link.down_bytes_per_second) for link in links.values())
    steps = [group.step_seconds for group in situation.groups if group.step_seconds is not None]
    computing = max(steps) if len(steps) == len(situation.groups) else math.nan
    taken = step_bytes / slowest
    return DataParallel(
        step_bytes=step_bytes,
        decoupled_step_bytes=sum(exchange.up_bytes) / exchange.interval,
        all_reduce_seconds=taken,
        slowdown=None if math.isnan(computing) else max(1.0, taken / computing),
    )
