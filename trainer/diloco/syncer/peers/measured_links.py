"""Builds the situation of a running job, for the arithmetic on its links, from measurements of each learner (ours).

Learners of a pool are alike, so a pool is a group with the median of its learners; a learner whose own link would be
too thin while its pool's is not is a group of its own. Pure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from diloco.plan.links import FULL
from diloco.plan.situation import Exchange, LearnerGroup, Link, Situation
from diloco.spec.names.learner_ids import pool_of

MOST_BY_THEMSELVES = 16
"""Most learners that are groups of their own, those with the thinnest links first: bounds what is reported (ours)."""
MOST_POOLS = 64
"""Most pools that are considered, the largest first (ours)."""


@dataclass(frozen=True, slots=True)
class MeasuredLearner:
    """A training learner's measured times and rates."""

    id: str
    step_seconds: float
    tokens_per_step: float
    up_bytes_per_second: float | None = None
    """None: not measured; the same below."""
    down_bytes_per_second: float | None = None


def measured_situation(exchange: Exchange, learners: Iterable[MeasuredLearner], merge_seconds: float) -> Situation:
    """The situation of a running job. A link without measurements counts as unlimited."""
    by_pool: dict[str, list[MeasuredLearner]] = {}
    for learner in learners:
        by_pool.setdefault(pool_of(learner.id), []).append(learner)
    largest = sorted(by_pool.items(), key=lambda item: (-len(item[1]), item[0]))[:MOST_POOLS]
    apart = _apart(exchange, dict(largest))
    groups = [_group(learner.id, [learner]) for learner in apart]
    for name, pool in largest:
        if rest := [learner for learner in pool if learner not in apart]:
            groups.append(_group(name, rest))
    return Situation(exchange, tuple(groups), merge_seconds=merge_seconds)


def _apart(exchange: Exchange, pools: Mapping[str, Sequence[MeasuredLearner]]) -> list[MeasuredLearner]:
    """Learners whose links are too thin, in pools of which most have links that are not."""
    shortest = min((learner.step_seconds for pool in pools.values() for learner in pool), default=0.0)
    thin: list[tuple[float, str, MeasuredLearner]] = []
    for pool in pools.values():
        used = [(_used_seconds(exchange, learner), learner) for learner in pool]
        most = FULL * exchange.interval * shortest
        if median_low([seconds for seconds, _ in used]) <= most:
            thin += [(-seconds, learner.id, learner) for seconds, learner in used if seconds > most]
    return [learner for *_, learner in sorted(thin, key=lambda one: one[:2])][:MOST_BY_THEMSELVES]


def _used_seconds(exchange: Exchange, learner: MeasuredLearner) -> float:
    """Of an interval's fragments, in the fuller direction."""
    up = sum(exchange.up_bytes) / (learner.up_bytes_per_second or math.inf)
    return max(up, sum(exchange.down_bytes) / (learner.down_bytes_per_second or math.inf))


def _group(name: str, learners: Sequence[MeasuredLearner]) -> LearnerGroup:
    count = len(learners)
    up = _median([learner.up_bytes_per_second for learner in learners])
    down = _median([learner.down_bytes_per_second for learner in learners])
    # Each of them has that rate for itself: the measurement includes the effect of sharing.
    link = Link(name, count * up, count * down)
    steps = median_low([learner.step_seconds for learner in learners])
    return LearnerGroup(name, count, link, steps, median_low([learner.tokens_per_step for learner in learners]))


def _median(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None and value > 0]
    return median_low(known) if known else math.inf
