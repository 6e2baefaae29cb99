"""A running job's links as `fit` takes them, from what was measured of each learner (ours).

Learners of a pool are alike, so a pool is a group with the median of its learners; one whose own link would be too thin
while its pool's is not stands by itself. Pure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from diloco.core.fit import FULL
from diloco.core.links import Exchange, LearnerGroup, Link, Situation
from diloco.spec.learner_ids import pool_of

MOST_BY_THEMSELVES = 16
"""Learners that stand by themselves, those with the thinnest links first: bounds what is reckoned (ours)."""
MOST_GROUPS = 64
"""Pools that are reckoned with, the largest first (ours)."""
MOST_PASSAGES = 16_384
"""Fragments times groups, so that remedies of a job with thousands of fragments are found in seconds (ours)."""


@dataclass(frozen=True, slots=True)
class MeasuredLearner:
    """What is known of a learner that trains."""

    id: str
    step_seconds: float
    tokens_per_step: float
    answer_seconds: float | None = None
    """From being asked to its whole payload being here; None: not measured, as in what follows."""
    up_bytes_per_second: float | None = None
    """While it pushed."""
    down_bytes_per_second: float | None = None
    """While it pulled."""

    @property
    def pool(self) -> str:
        """``region/pool``."""
        return pool_of(self.id)


def measured_situation(exchange: Exchange, learners: Iterable[MeasuredLearner], merge_seconds: float) -> Situation:
    """The situation of a job that runs. Whoever was not measured counts as near, with links that limit nothing."""
    by_pool: dict[str, list[MeasuredLearner]] = {}
    for learner in learners:
        by_pool.setdefault(learner.pool, []).append(learner)
    bound = max(4, min(MOST_GROUPS, MOST_PASSAGES // len(exchange.numels)))
    largest = sorted(by_pool.items(), key=lambda item: (-len(item[1]), item[0]))[:bound]
    everyone = [learner for _, pool in largest for learner in pool]
    apart = _apart(exchange, dict(largest), everyone)[: max(1, bound // 4)]
    groups = [_group(exchange, learner.id, [learner]) for learner in apart]
    for name, pool in largest:
        if rest := [learner for learner in pool if learner not in apart]:
            groups.append(_group(exchange, name, rest))
    return Situation(exchange, tuple(groups), merge_seconds=merge_seconds)


def _apart(
    exchange: Exchange, pools: Mapping[str, Sequence[MeasuredLearner]], everyone: Sequence[MeasuredLearner]
) -> list[MeasuredLearner]:
    """Learners whose links are too thin, in pools of which most have links that are not."""
    if not everyone:
        return []
    cycle_seconds = exchange.interval * min(learner.step_seconds for learner in everyone)
    used = {learner.id: _used(exchange, learner, cycle_seconds) for learner in everyone}
    thin = [
        learner
        for pool in pools.values()
        if median_low([used[learner.id] for learner in pool]) <= FULL
        for learner in pool
        if used[learner.id] > FULL
    ]
    return sorted(thin, key=lambda learner: (-used[learner.id], learner.id))[:MOST_BY_THEMSELVES]


def _used(exchange: Exchange, learner: MeasuredLearner, cycle_seconds: float) -> float:
    up = sum(exchange.up_bytes) / (learner.up_bytes_per_second or math.inf)
    down = sum(exchange.down_bytes) / (learner.down_bytes_per_second or math.inf)
    return max(up, down) / cycle_seconds


def _group(exchange: Exchange, name: str, learners: Sequence[MeasuredLearner]) -> LearnerGroup:
    count = len(learners)
    up = _median([learner.up_bytes_per_second for learner in learners], math.inf)
    down = _median([learner.down_bytes_per_second for learner in learners], math.inf)
    answer = _median([learner.answer_seconds for learner in learners], 0.0)
    payload = sum(exchange.up_bytes) / len(exchange.up_bytes)
    # What is left of an answer's time when its payload's own is taken off. Encoding is in it: it delays like distance.
    round_trip = max(0.0, answer - payload / up)
    # Each of them has that rate to itself: what they share is in the measurement.
    link = Link(name, count * up, count * down, round_trip)
    steps = median_low([learner.step_seconds for learner in learners])
    return LearnerGroup(name, count, link, steps, median_low([learner.tokens_per_step for learner in learners]))


def _median(values: Iterable[float | None], otherwise: float) -> float:
    known = [value for value in values if value is not None and value > 0]
    return median_low(known) if known else otherwise
