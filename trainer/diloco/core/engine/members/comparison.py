"""Limits how fast a learner may be, by the speed of the fastest other one (ours).

A pool has one kind of hardware. So beside two or more others of its pool, a learner is at most a little faster than the
fastest of them. One other may be slow or wrong itself, and learners of other pools are other machines: beside these,
the limits are wider. A learner that is slow or wrong lowers nobody's limit, as only the fastest counts.
"""

from collections.abc import Collection
from heapq import nlargest

from diloco.core.engine.records import LearnerRecord
from diloco.core.engine.state import EngineState
from diloco.spec.names.learner_ids import pool_of

FACTORS = (32.0, 2.0, 1.15)
"""How many times as fast as the fastest other one a learner may be, with none, one, or more others of its pool
measured."""


class _Fastest:
    """The two fastest of some learners, by steps and by tokens."""

    def __init__(self, learners: Collection[LearnerRecord] = ()) -> None:
        self.number = len(learners)
        self._steps = nlargest(2, [(1 / one.pace.seconds, one.id) for one in learners if one.pace.seconds])
        self._tokens = nlargest(2, [(one.pace.tokens_per_second, one.id) for one in learners])

    def beside(self, learner: str) -> tuple[float, float]:
        """Steps and tokens a second of the fastest one but ``learner``; 0: there is none."""
        steps, tokens = (
            next((speed for speed, name in fastest if name != learner), 0.0) for fastest in (self._steps, self._tokens)
        )
        return steps, tokens


def compare(state: EngineState) -> None:
    """Set every learner's limits from what is measured now."""
    measured = [record for record in state.learners.values() if record.pace.reports > 1]
    pools: dict[str, list[LearnerRecord]] = {}
    for record in measured:
        pools.setdefault(pool_of(record.id), []).append(record)
    fastest, of_all = {pool: _Fastest(learners) for pool, learners in pools.items()}, _Fastest(measured)
    nobody = _Fastest()
    for record in state.learners.values():
        mates = fastest.get(pool_of(record.id), nobody)
        others = mates.number - (record.pace.reports > 1)
        steps, tokens = (mates if others else of_all).beside(record.id)
        factor = FACTORS[min(others, len(FACTORS) - 1)]
        record.credit.least_step_seconds = 1 / (factor * steps) if steps else 0.0
        record.credit.most_tokens_per_second = factor * tokens if tokens else None
