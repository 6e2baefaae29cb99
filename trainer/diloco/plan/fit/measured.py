"""Builds `fit`'s input for a running job from measurements of each learner (ours).

Learners of a pool are alike, so a pool is a group with the median of its learners; a learner whose own link would be
too thin while its pool's is not is a group of its own. Pure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from diloco.plan.fit.fit import FULL
from diloco.plan.fit.situation import Exchange, LearnerGroup, Link, Situation
from diloco.spec.names.learner_ids import pool_of

MOST_BY_THEMSELVES = 16
"""Most learners that are groups of their own, those with the thinnest links first: bounds the computation (ours)."""
MOST_GROUPS = 64
"""Most pools that are considered, the largest first (ours)."""
MOST_PASSAGES = 16_384
"""Fragments times groups, so that remedies of a job with thousands of fragments are found in seconds (ours)."""


@dataclass(frozen=True, slots=True)
class MeasuredLearner:
    """A training learner's measured times and rates, as the input of the links' fit."""

    id: str
    step_seconds: float
    tokens_per_step: float
    answer_seconds: float | None = None
    """From the request to its complete payload; None: not measured; the same below."""
    up_bytes_per_second: float | None = None
    down_bytes_per_second: float | None = None

    @property
    def pool(self) -> str:
        """``region/pool``."""
        return pool_of(self.id)


def measured_situation(exchange: Exchange, learners: Iterable[MeasuredLearner], merge_seconds: float) -> Situation:
    """The situation of a running job. A learner without measurements counts as near, with unlimited links."""
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
    # The answer's time without its payload's. Encoding is included: it delays as distance does.
    round_trip = max(0.0, answer - payload / up)
    # Each of them has that rate for itself: the measurement includes the effect of sharing.
    link = Link(name, count * up, count * down, round_trip)
    steps = median_low([learner.step_seconds for learner in learners])
    return LearnerGroup(name, count, link, steps, median_low([learner.tokens_per_step for learner in learners]))


def _median(values: Iterable[float | None], otherwise: float) -> float:
    known = [value for value in values if value is not None and value > 0]
    return median_low(known) if known else otherwise
