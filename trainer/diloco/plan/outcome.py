"""What became of the learners' work between two moments of a job, simulated or real, from the engine's own accounts."""

from dataclasses import dataclass
from math import fsum
from statistics import median_low
from typing import Final, Self

from diloco.core.account.time_class import COMPUTING, TimeClass
from diloco.spec.names.learner_ids import pool_of
from diloco.spec.status.engine import EngineStatus, LearnerState, LearnerStatus

_SETTLED: Final = COMPUTING - {TimeClass.PENDING}


@dataclass(frozen=True, slots=True)
class PoolOutcome:
    """How the learners of a pool took part."""

    name: str
    learners: int
    tokens: float
    """Trained."""
    merged: float
    """Share of the work that was settled, of all learners together; so are the next two."""
    overwritten: float
    """Trained while the fragment was under way."""
    late: float
    """Arrived too late for its round."""
    waiting: float
    """Share of the time in which they stood still at the staleness bound."""
    lead_steps: int
    """Inner steps before a launch at which they are asked."""
    answer_seconds: float | None
    """From a request to the complete outer gradient; None: not measured."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured between two moments."""

    seconds: float
    merges: int
    round_seconds: float | None
    """Recently, from the launch of a round until as many learners as the quorum train on its result."""
    allowed: int
    """Fragments that may be under way at once."""
    pools: tuple[PoolOutcome, ...]

    @property
    def merged_share(self) -> float | None:
        """Share of all work that was merged; None: no pool has trained."""
        trained = fsum(pool.tokens for pool in self.pools)
        return fsum(pool.merged * pool.tokens for pool in self.pools) / trained if trained else None

    @classmethod
    def between(cls, before: EngineStatus, after: EngineStatus) -> Self:
        """Of the learners that train at both moments and have had work settled between them."""
        earlier = {one.id: one for one in before.learners}
        pools: dict[str, list[tuple[LearnerStatus, LearnerStatus]]] = {}
        for one in after.learners:
            then = earlier.get(one.id)
            if then is not None and LearnerState.TRAINING == one.state == then.state:
                pools.setdefault(pool_of(one.id), []).append((then, one))
        found = (_pool(name, pairs) for name, pairs in pools.items())
        return cls(
            seconds=after.elapsed_seconds - before.elapsed_seconds,
            merges=after.syncer_step - before.syncer_step,
            round_seconds=after.round_seconds,
            allowed=after.fragments_allowed,
            pools=tuple(pool for pool in found if pool is not None),
        )


def _pool(name: str, pairs: list[tuple[LearnerStatus, LearnerStatus]]) -> PoolOutcome | None:
    seconds = {
        one: max(0.0, fsum(now.time_seconds.get(one, 0.0) - then.time_seconds.get(one, 0.0) for then, now in pairs))
        for one in TimeClass
    }
    settled = fsum(seconds[one] for one in _SETTLED)
    if not settled:
        return None
    computed = settled + seconds[TimeClass.PENDING]
    answers = [now.answer_seconds for _, now in pairs if now.answer_seconds is not None]
    return PoolOutcome(
        name=name,
        learners=len(pairs),
        tokens=float(sum(max(0, now.tokens - then.tokens) for then, now in pairs)),
        merged=seconds[TimeClass.MERGED] / settled,
        overwritten=seconds[TimeClass.OVERWRITTEN] / settled,
        late=seconds[TimeClass.LATE] / settled,
        waiting=seconds[TimeClass.WAITING] / (computed + seconds[TimeClass.WAITING]),
        lead_steps=median_low([now.lead_steps for _, now in pairs]),
        answer_seconds=median_low(answers) if answers else None,
    )
