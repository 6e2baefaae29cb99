"""Limits how fast a learner may be, and how many tokens its steps may have, by what other planned learners do (ours).

Others of its pool have its hardware. Beside two or more of them a learner counts as little faster than the fastest, and
as at most twice as fast as their median: fewer than half of a pool cannot lift each other. A single other one may be
slow or wrong itself, so the limit is twice its speed.

Learners of other pools are other machines. The manifest may give their relative speeds (`regions[].pools[].speed`):
then a learner counts as at most twice as fast as these make it beside the median of other pools. If its pool's speed is
not given, and no other learner of its pool is measured, the limit is four times that median. In both cases all planned
learners of the pool together count as at most twice their planned share of what all planned learners can do. Learners
that are away are part of that, so work that is made while others are away counts.

Of an even number, the upper median counts: a learner that is slow or wrong lowers nobody's limit, unless it is one of
two.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from operator import neg

from diloco.core.engine.events import PoolTerms
from diloco.core.engine.members.credit import Credit
from diloco.core.engine.records import LearnerRecord
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

Rates = tuple[float, float, float]
"""Steps a second, tokens a second, tokens a step."""


def compare(state: EngineState) -> None:
    """Set every learner's limits from what is measured now."""
    measured: dict[str, dict[str, Rates]] = {}
    counted: dict[str, list[Rates]] = {}
    sizes = Counter(state.learners[name].pool for name in state.planned)
    for name in state.planned:
        record = state.learners[name]
        if (rates := _measured(record)) is not None:
            measured.setdefault(record.pool, {})[name] = rates
            counted.setdefault(record.pool, []).append(_at_most(rates, _limit(record.credit)))
    pools = _Pools(state, sizes, counted)
    mates = {pool: _Mates(of_pool) for pool, of_pool in measured.items()}
    beside_others = {pool: pools.limit(pool) for pool in state.pools}
    for record in state.learners.values():
        own = mates.get(record.pool)
        limit = None if own is None else own.limit(record.id)
        if limit is None:
            limit = beside_others.get(record.pool)
        elif _terms(state, record.pool).speed is not None:
            limit = _at_most(limit, beside_others.get(record.pool))
        _set_limit(record.credit, limit)


def _measured(record: LearnerRecord) -> Rates | None:
    pace = record.measured
    if pace is None or pace.seconds is None:
        return None
    return 1 / pace.seconds, pace.tokens_per_second, pace.tokens_per_step


def _limit(credit: Credit) -> Rates:
    steps = 1 / credit.least_step_seconds if credit.least_step_seconds else inf
    tokens, per_step = credit.most_tokens_per_second, credit.most_tokens_per_step
    return steps, inf if tokens is None else tokens, inf if per_step is None else per_step


def _set_limit(credit: Credit, limit: Rates | None) -> None:
    steps, tokens, per_step = limit or (inf, inf, inf)
    credit.least_step_seconds = 1 / steps
    credit.most_tokens_per_second = tokens if tokens < inf else None
    credit.most_tokens_per_step = per_step if per_step < inf else None


def _at_most(rates: Rates, limit: Rates | None) -> Rates:
    if limit is None:
        return rates
    return min(rates[0], limit[0]), min(rates[1], limit[1]), min(rates[2], limit[2])


def _terms(state: EngineState, pool: str) -> PoolTerms:
    return state.terms.get(pool) or PoolTerms(pool)


class _Mates:
    """The measured learners of one pool."""

    def __init__(self, rates: dict[str, Rates]) -> None:
        self._rates = rates
        self._descending = [sorted(kind, reverse=True) for kind in zip(*rates.values(), strict=True)]

    def limit(self, learner: str) -> Rates | None:
        """What counts of a learner beside the others; None: there is no other."""
        own = self._rates.get(learner)
        others = len(self._rates) - (own is not None)
        if not others:
            return None
        of_own = (-inf, -inf, -inf) if own is None else own
        steps, tokens, per_step = map(_beside, self._descending, of_own, (others,) * len(of_own))
        return steps, tokens, per_step


def _beside(descending: Sequence[float], own: float, others: int) -> float:
    """The limit beside ``others`` numbers: all of these but, if it is among them, the learner's ``own``."""
    place = bisect_left(descending, -own, key=neg)
    fastest, median = (descending[k + (k >= place)] for k in (0, (others - 1) // 2))
    return BESIDE_MEDIAN * median if others == 1 else min(BESIDE_FASTEST * fastest, BESIDE_MEDIAN * median)


class _Pools:
    """The pools with measured learners, each as fast as the median of what counts of these.

    Rates are in the unit in which pools are alike: steps as sequences if each step had as many as the pool's may have,
    tokens a step as part of that number, and both speeds divided by what the manifest gives.
    """

    def __init__(self, state: EngineState, sizes: Counter[str], counted: dict[str, list[Rates]]) -> None:
        self._state = state
        self._work = {pool: size * self._speed(pool) for pool, size in sizes.items()}
        self._rates = {
            pool: _medians(
                (steps * terms.batch / speed, tokens / speed, per_step / terms.batch)
                for steps, tokens, per_step in of_pool
            )
            for pool, of_pool in counted.items()
            for terms, speed in [(_terms(state, pool), self._speed(pool))]
        }

    def _speed(self, pool: str) -> float:
        return _terms(self._state, pool).speed or 1.0

    def limit(self, pool: str) -> Rates | None:
        """What counts of a learner of this pool beside other pools; None: none of these is measured."""
        others = {name: rates for name, rates in self._rates.items() if name != pool}
        if not others:
            return None
        terms, speed = _terms(self._state, pool), self._speed(pool)
        times = ALONE if terms.speed is None else AS_GIVEN
        steps, tokens, per_step = (times * number for number in _medians(others.values()))
        own, all_work = self._work.get(pool, 0.0), sum(self._work.values())
        if all_work > OF_ITS_SHARE * own:
            # At this speed the pool does twice its planned share of all work, if the others are as fast as those that
            # are measured.
            share = OF_ITS_SHARE * (all_work - own) / (all_work - OF_ITS_SHARE * own)
            known = sum(self._work[name] for name in others)
            mean_steps, mean_tokens = (
                sum(self._work[name] * rates[kind] for name, rates in others.items()) / known for kind in (0, 1)
            )
            steps, tokens = min(steps, share * mean_steps), min(tokens, share * mean_tokens)
        return steps * speed / terms.batch, tokens * speed, per_step * terms.batch


def _medians(rates: Iterable[Rates]) -> Rates:
    steps, tokens, per_step = (_upper_median(kind) for kind in zip(*rates, strict=True))
    return steps, tokens, per_step


def _upper_median(numbers: Sequence[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]
