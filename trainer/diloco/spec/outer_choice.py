"""Chooses the outer optimizer of a job, and says why.

DiLoCo's outer momentum needs many merges of each fragment; in a short run it costs loss (docs/quality.md). So a job
whose manifest leaves ``sync.outerOptimizer`` out gets the optimizer that suits its length. The syncer keeps the choice
in its checkpoints: a pool that is scaled later changes the expected length, but not the optimizer.
"""

from typing import Final, Self

from pydantic import BaseModel, ConfigDict

from diloco.spec.job import DiLoCoJob, JobSpec
from diloco.spec.sync import OuterOptimizer

AVERAGE: Final = OuterOptimizer(learning_rate=1.0, momentum=0.0)
"""Moves the global model to the mean of the learners'."""
DILOCO: Final = OuterOptimizer(learning_rate=0.7, momentum=0.9)
"""The optimizer of DiLoCo (arXiv 2311.08105)."""
MANY_MERGES: Final = 50
"""Merges of a fragment from which on `DILOCO` is chosen (ours; docs/quality.md)."""


class OuterChoice(BaseModel):
    """The outer optimizer of a job, and what it was chosen by."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimizer: OuterOptimizer
    merges: int | None
    """Merges of each fragment that were expected when it was chosen; None: the manifest gives the optimizer."""

    @classmethod
    def of(cls, spec: JobSpec, before: Self | None = None) -> Self:
        """The choice for a job; ``before``: the one in the checkpoint that it resumes from, which stays."""
        given = spec.sync.outer_optimizer
        if given is not None:
            return cls(optimizer=given, merges=None)
        if before is not None and before.merges is not None:
            return before
        merges = expected_merges(spec)
        return cls(optimizer=DILOCO if merges >= MANY_MERGES else AVERAGE, merges=merges)

    def put_into(self, job: DiLoCoJob) -> DiLoCoJob:
        """The job with this optimizer given, as a tape has it."""
        sync = job.spec.sync.model_copy(update={"outer_optimizer": self.optimizer})
        return job.model_copy(update={"spec": job.spec.model_copy(update={"sync": sync})})

    def __str__(self) -> str:
        chosen = f"learning rate {self.optimizer.learning_rate:g}, momentum {self.optimizer.momentum:g}"
        if self.merges is None:
            return f"{chosen} (as given)"
        bound = "at least" if self.merges >= MANY_MERGES else "fewer than"
        return f"{chosen} (Auto: expected merges of each fragment: {self.merges:,}, {bound} {MANY_MERGES})"


def expected_merges(spec: JobSpec) -> int:
    """How often each fragment will be merged, if all learners train, and at the same speed.

    A round merges a fragment of all learners that are ready, whatever the quorum. So it is the number of intervals in
    the inner steps of one learner.
    """
    training = spec.training
    sequences = sum(pool.size * pool.largest_batch(training) for pool in spec.pools.values())
    return training.tokens // (sequences * training.sequence_length * spec.sync.interval)
