"""Limits how fast a learner may be, and how many tokens its steps may have, by what other planned learners do (ours).

Others of its pool have its hardware. Beside two or more of them a learner counts as little faster than the fastest, and
as at most twice as fast as their median: fewer than half of a pool cannot lift each other. A single other one may be
slow or wrong itself, so the limit is twice its speed. So it is beside those that have left on purpose, by what
they last did: who is left may be alone on a machine that they had shared.

Learners of other pools are other machines. The manifest may give their relative speeds (`regions[].pools[].speed`):
then a learner counts as at most twice as fast as these make it beside the median of other pools. If its pool's speed is
not given, and no other learner of its pool is measured, the limit is four times that median. In both cases all planned
learners of the pool together count as at most twice their planned share of what all planned learners can do. Learners
that are away are part of that, so work that is made while others are away counts.

Of an even number, the upper median counts: a learner that is slow or wrong lowers nobody's limit, unless it is one of
two.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import fsum

from diloco.core.engine.events import PoolTerms
from diloco.core.engine.state import EngineState

BESIDE_FASTEST = 1.15
"""Times the fastest other learner of the pool, if two or more are measured."""
BESIDE_MEDIAN = 2.0
"""Times the median of the other learners of the pool."""
ALONE = 4.0
"""Times the median of other pools, without another measured learner of the pool."""
AS_GIVEN = 2.0
"""Times what the given speeds make of the median of other pools."""
OF_ITS_SHARE = 2.0
"""Times the pool's planned share of all work."""
LEAST_MERGED = 0.5
"""As little of the others' work is taken as merged, in what is twice that share: before many merges none is."""

Rates = tuple[float, float, float]
"""Steps a second, tokens a second, tokens a step."""


def compare(state: EngineState) -> None:
    """Set every learner's limits from what is measured now."""
    measured: dict[str, dict[str, Rates]] = {}
    sizes = Counter([state.learners[name].pool for name in state.planned])
    for name in state.planned:
        record = state.learners[name]
        pace = record.measured
        if pace is not None and pace.seconds:
            rates = (1 / pace.seconds, pace.tokens_per_second, pace.tokens_per_step)
            measured.setdefault(record.pool, {})[name] = rates
    pools = _Pools(state, sizes, measured)
    beside_others = {pool: pools.limit(pool) for pool in state.pools}
    left = frozenset(name for name in state.planned if state.learners[name].left_cleanly)
    mates = {pool: _Mates(of_pool, of_pool.keys() - left) for pool, of_pool in measured.items()}
    for record in state.learners.values():
        limit = None if (own := mates.get(record.pool)) is None else own.limit(record.id)
        if limit is None:
            limit = beside_others.get(record.pool)
        elif (other := beside_others.get(record.pool)) is not None and pools.is_given(record.pool):
            limit = _least(limit, other)
        credit = record.credit
        if limit is None:
            credit.least_step_seconds, credit.most_tokens_per_second, credit.most_tokens_per_step = 0.0, None, None
        else:
            steps, credit.most_tokens_per_second, credit.most_tokens_per_step = limit
            credit.least_step_seconds = 1 / steps


def _least(one: Rates, other: Rates) -> Rates:
    return min(one[0], other[0]), min(one[1], other[1]), min(one[2], other[2])


class _Mates:
    """The measured learners of one pool."""

    def __init__(self, rates: dict[str, Rates], staying: AbstractSet[str]) -> None:
        self._rates, self._staying = rates, staying
        self._descending = [sorted(kind, reverse=True) for kind in zip(*rates.values(), strict=True)]

    def limit(self, learner: str) -> Rates | None:
        """What counts of a learner beside the others; None: there is no other."""
        own = self._rates.get(learner)
        others = len(self._rates) - (own is not None)
        if not others:
            return None
        middle, limits = (others - 1) // 2, []
        several = len(self._staying - {learner}) > 1
        for kind, descending in enumerate(self._descending):
            # Without its own number, those from its place on move up by one.
            fastest = descending[own is not None and own[kind] >= descending[0]]
            median = descending[middle + (own is not None and own[kind] >= descending[middle])]
            most = BESIDE_MEDIAN * median
            limits.append(min(most, BESIDE_FASTEST * fastest) if several else most)
        return limits[0], limits[1], limits[2]


class _Pools:
    """The pools with measured learners, each as fast as the median of what counts of these.

    Rates are in the unit in which pools are alike: steps as sequences if each step had as many as the pool's may have,
    tokens a step as part of that number, and both speeds divided by what the manifest gives.
    """

    def __init__(
        self, state: EngineState, sizes: Mapping[str, int], measured: Mapping[str, Mapping[str, Rates]]
    ) -> None:
        self._state = state
        self._work = {pool: size * self._speed(pool) for pool, size in sizes.items()}
        several = len(measured) > 1 or measured.keys() != state.pools
        self._rates = {pool: self._counted(pool, of_pool) for pool, of_pool in measured.items() if several}
        self._ascending = [sorted(kind) for kind in zip(*self._rates.values(), strict=True)]
        self._all_work = sum(self._work.values())
        self._done = self._work_of(self._rates)
        self._tokens = dict.fromkeys(state.pools, (0.0, 0.0))
        """Of each pool: those that count, and of these the merged ones."""
        for name in state.planned:
            record = state.learners[name]
            counted, merged = self._tokens[record.pool]
            self._tokens[record.pool] = counted + record.credit.tokens, merged + record.merged_tokens
        self._all_tokens = tuple(fsum(kind) for kind in zip(*self._tokens.values(), strict=True))

    def _work_of(self, pools: Collection[str]) -> Rates:
        """Planned work of pools that are measured, and as many times their steps and their tokens."""
        known = [(self._work[pool], self._rates[pool]) for pool in pools]
        steps, tokens = (sum(work * rates[kind] for work, rates in known) for kind in (0, 1))
        return sum(work for work, _ in known), steps, tokens

    def _counted(self, pool: str, measured: Mapping[str, Rates]) -> Rates:
        batch, speed = self._terms(pool).batch, self._speed(pool)
        counted = []
        for name, rates in measured.items():
            credit = self._state.learners[name].credit
            most, per_step = credit.most_tokens_per_second, credit.most_tokens_per_step
            steps, tokens, a_step = rates
            if most is not None and per_step is not None and credit.least_step_seconds:
                steps, tokens, a_step = _least(rates, (1 / credit.least_step_seconds, most, per_step))
            counted.append((steps * batch / speed, tokens / speed, a_step / batch))
        steps, tokens, per_step = (_upper_median(sorted(kind)) for kind in zip(*counted, strict=True))
        return steps, tokens, per_step

    def _terms(self, pool: str) -> PoolTerms:
        return self._state.terms.get(pool) or PoolTerms(pool)

    def _speed(self, pool: str) -> float:
        return self._terms(pool).speed or 1.0

    def is_given(self, pool: str) -> bool:
        """Whether the manifest gives the speed of its learners."""
        return self._terms(pool).speed is not None

    def limit(self, pool: str) -> Rates | None:
        """What counts of a learner of this pool beside other pools; None: none of these is measured."""
        rates = self._rates.get(pool)
        if len(self._rates) == (rates is not None):
            return None
        terms, speed = self._terms(pool), self._speed(pool)
        times = ALONE if terms.speed is None else AS_GIVEN
        without = rates or (None, None, None)
        steps, tokens, per_step = (times * _upper_median(*of) for of in zip(self._ascending, without, strict=True))
        own = self._work.get(pool, 0.0)
        if self._all_work > OF_ITS_SHARE * own:
            # At this speed the pool does twice its planned share of all work, if the others are as fast as those that
            # are measured.
            share = OF_ITS_SHARE * (self._all_work - own) / (self._all_work - OF_ITS_SHARE * own)
            mine = (0.0, 0.0, 0.0) if rates is None else self._work_of((pool,))
            known, all_steps, all_tokens = (whole - part for whole, part in zip(self._done, mine, strict=True))
            share *= self._merged_by_others(pool)
            steps, tokens = min(steps, share * all_steps / known), min(tokens, share * all_tokens / known)
        return steps * speed / terms.batch, tokens * speed, per_step * terms.batch

    def _merged_by_others(self, pool: str) -> float:
        """The share of the other pools' tokens that is merged: one that is always in time may not gain by that."""
        counted, merged = (whole - own for whole, own in zip(self._all_tokens, self._tokens[pool], strict=True))
        return min(1.0, max(LEAST_MERGED, merged / counted)) if counted > 0 else 1.0


def _upper_median(ascending: Sequence[float], own: float | None = None) -> float:
    """The upper median of these numbers without the ``own`` one."""
    middle = (len(ascending) - (own is not None)) // 2
    return ascending[middle + (own is not None and own <= ascending[middle])]
