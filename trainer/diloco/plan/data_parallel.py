"""What ordinary data-parallel training would need of the same links: one all-reduce of all gradients per step.

It assumes a ring that passes through the regions one after the other, which is the least that any all-reduce takes.
Only links between regions count, with what they carry, whatever connections our learners have.
"""

import math
from dataclasses import dataclass

from diloco.core.sizes import all_reduce_bytes
from diloco.plan.situation import Situation


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Data-parallel training compared with decoupled training."""

    step_bytes: float
    """Bytes that each learner sends and receives in a step; a link between regions carries them once."""
    decoupled_step_bytes: float
    """Bytes of a learner's outer gradients per step of decoupled training, on average."""
    all_reduce_seconds: float
    """Over the slowest link; 0 if no link limits it."""
    slowdown: float | None
    """A step takes at least this many times as long, with the all-reduce behind the computation. None: not known."""


def data_parallel(situation: Situation) -> DataParallel | None:
    """The requirements; None for learners that have no link between them: all in one region, or a single one."""
    links = {group.link.name: group.link for group in situation.groups}
    if len(links) < 2:
        return None
    exchange = situation.exchange
    step_bytes = all_reduce_bytes(sum(exchange.numels), situation.learners)
    slowest = min(link.link_bytes_per_second for link in links.values())
    steps = [group.step_seconds for group in situation.groups if group.step_seconds is not None]
    computing = max(steps) if len(steps) == len(situation.groups) else math.nan
    taken = step_bytes / slowest
    return DataParallel(
        step_bytes=step_bytes,
        decoupled_step_bytes=sum(exchange.up_bytes) / exchange.interval,
        all_reduce_seconds=taken,
        slowdown=None if math.isnan(computing) else max(1.0, taken / computing),
    )
