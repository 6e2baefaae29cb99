"""Chooses the outer optimizer of a job from what was measured, and says why.

A job whose manifest leaves ``sync.outerOptimizer`` out gets the one that was best in runs with about as many merges
(quality.md). Outer momentum needs long intervals and many merges of each fragment; without them it costs loss, up to a
fifth. With TopK, what waits to be sent takes its place (SparseLoCo, arXiv 2508.15706). The syncer keeps the choice in
its checkpoints: a pool that is scaled later changes the expected merges, but not the optimizer.
"""

from typing import Final, NamedTuple, Self

from pydantic import BaseModel, ConfigDict

from diloco.spec.job import DiLoCoJob, JobSpec
from diloco.spec.sync import OuterOptimizer

AVERAGE: Final = OuterOptimizer(learning_rate=1.0, momentum=0.0)
"""Moves the global model to the mean of the learners'."""
DILOCO: Final = OuterOptimizer(learning_rate=0.7, momentum=0.9)
"""The optimizer of DiLoCo (arXiv 2311.08105)."""
LONG_INTERVAL: Final = 24
"""Inner steps from which on there may be momentum: the shortest interval of the papers, and the one measured."""
LEARNERS: Final = 4
"""Of the measured runs."""


class Measured(NamedTuple):
    """The best outer optimizer of runs with H = 24 and four learners."""

    least_merges: int
    """Expected merges of each fragment from which on a job gets it (ours: halfway between measured runs, by ratio)."""
    optimizer: OuterOptimizer
    merges: int
    """Of each fragment in the run."""


MEASURED: Final = (
    Measured(0, AVERAGE, 17),
    Measured(34, OuterOptimizer(learning_rate=0.7, momentum=0.6), 67),
    Measured(134, DILOCO, 266),
)
"""Setting B of quality.md, with AdamW."""
ALIKE: Final = 2
"""A job with up to so many times the merges of a measured run, or one over so many, is like it (ours)."""


class OuterChoice(BaseModel):
    """The outer optimizer of a job, and why it has this one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: OuterOptimizer
    reason: str = ""
    """Why it was chosen; empty: the manifest gives it."""

    @classmethod
    def of(cls, spec: JobSpec, before: Self | None = None) -> Self:
        """The choice for a job; ``before``: the one in the checkpoint that it resumes from, which stays."""
        given, interval = spec.sync.outer_optimizer, spec.sync.interval
        if given is not None:
            return cls(optimizer=given)
        if before is not None and before.reason:
            return before
        if spec.sync.compression == "TopK":
            return cls(optimizer=AVERAGE, reason="sync.compression is TopK")
        if interval < LONG_INTERVAL:
            return cls(optimizer=AVERAGE, reason=f"sync.interval {interval} is below {LONG_INTERVAL}")
        merges = expected_merges(spec)
        row = [one for one in MEASURED if one.least_merges <= merges][-1]
        learners = sum(pool.size for pool in spec.pools.values())
        as_many = row.merges / ALIKE <= merges <= row.merges * ALIKE
        as_measured = interval == LONG_INTERVAL and learners == LEARNERS and spec.training.optimizer.type == "AdamW"
        how = "as measured with" if as_many and as_measured else "extrapolated from"
        run = f"{row.merges}, {LEARNERS} learners, interval {LONG_INTERVAL} and AdamW"
        return cls(optimizer=row.optimizer, reason=f"expected merges of each fragment: {merges:,}; {how} {run}")

    def put_into(self, job: DiLoCoJob) -> DiLoCoJob:
        """The job with this optimizer given, as a tape has it."""
        sync = job.spec.sync.model_copy(update={"outer_optimizer": self.optimizer})
        return job.model_copy(update={"spec": job.spec.model_copy(update={"sync": sync})})

    def __str__(self) -> str:
        chosen = f"learning rate {self.optimizer.learning_rate:g}, momentum {self.optimizer.momentum:g}"
        return f"{chosen} (Auto: {self.reason})" if self.reason else f"{chosen} (as given)"


def expected_merges(spec: JobSpec) -> int:
    """How often each fragment will be merged, if all learners train, and at the same speed.

    A round merges a fragment of all learners that are ready, whatever the quorum. So it is the number of intervals in
    the inner steps of one learner.
    """
    training = spec.training
    sequences = sum(pool.size * pool.batch_of(training) for pool in spec.pools.values())
    return training.tokens // (sequences * training.sequence_length * spec.sync.interval)
