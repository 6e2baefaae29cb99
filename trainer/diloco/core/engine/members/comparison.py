"""Limits how fast a learner may be, by the speed of the fastest other one (ours).

A pool has one kind of hardware. So beside two or more others of its pool, a learner is at most a little faster than the
fastest of them. One other may be slow or wrong itself, and learners of other pools are other machines: beside these,
the limits are wider. A learner that is slow or wrong lowers nobody's limit, as only the fastest counts.
"""

from collections.abc import Collection

from diloco.core.engine.records import LearnerRecord
from diloco.core.engine.state import EngineState

FACTORS = (32.0, 2.0, 1.15)
"""How many times as fast as the fastest other one a learner may be, with none, one, or more others of its pool
measured."""


class _Fastest:
    """The two fastest of some learners, by steps and by tokens."""

    def __init__(self, learners: Collection[LearnerRecord] = ()) -> None:
        self.number = len(learners)
        self._steps = _first_two([(1 / one.pace.seconds, one.id) for one in learners if one.pace.seconds])
        self._tokens = _first_two([(one.pace.tokens_per_second, one.id) for one in learners])

    def beside(self, learner: str) -> tuple[float, float]:
        """Steps and tokens a second of the fastest one but ``learner``; 0: there is none."""
        (steps, one), (fewer_steps, _) = self._steps
        (tokens, other), (fewer_tokens, _) = self._tokens
        return fewer_steps if one == learner else steps, fewer_tokens if other == learner else tokens


def _first_two(speeds: list[tuple[float, str]]) -> list[tuple[float, str]]:
    return sorted([*speeds, (0.0, ""), (0.0, "")], reverse=True)[:2]


def compare(state: EngineState) -> None:
    """Set every learner's limits from what is measured now."""
    measured = [record for record in state.learners.values() if record.pace.reports > 1]
    pools: dict[str, list[LearnerRecord]] = {}
    for record in measured:
        pools.setdefault(record.pool, []).append(record)
    fastest, of_all = {pool: _Fastest(learners) for pool, learners in pools.items()}, _Fastest(measured)
    nobody = _Fastest()
    for record in state.learners.values():
        mates = fastest.get(record.pool, nobody)
        others = mates.number - (record.pace.reports > 1)
        steps, tokens = (mates if others else of_all).beside(record.id)
        factor = FACTORS[min(others, len(FACTORS) - 1)]
        record.credit.least_step_seconds = 1 / (factor * steps) if steps else 0.0
        record.credit.most_tokens_per_second = factor * tokens if tokens else None
