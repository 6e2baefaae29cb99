"""The options that the engine reads from a job."""

from dataclasses import dataclass, field
from typing import Self

from diloco.core.engine.events import PoolMinimum, PoolTerms
from diloco.core.engine.rounds.schedule import Schedule
from diloco.core.fragments import Layout
from diloco.spec import DiLoCoJob, JobSpec
from diloco.spec.training import TrainingSpec

RULES = 1
"""Number of the engine's rules, written on every tape: one made under others cannot be replayed by this version."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of one job. Durations in seconds, intervals in inner steps."""

    schedule: Schedule
    overlap_limit: int
    """Largest tau, in inner steps; above the schedule's overlap if that is automatic."""
    learners: tuple[str, ...]
    pools: tuple[str, ...]
    """``region/pool`` of every pool at the start."""
    shares: tuple[float, ...]
    """Each fragment's share of the model."""
    quorum: int
    grace_safety: float
    grace_maximum_seconds: float | None
    token_weights: bool
    max_version_lag: int
    max_staleness_steps: int
    """Inner steps on a fragment after which a learner waits for it."""
    lease_seconds: float
    startup_seconds: float
    budget_tokens: int
    evaluate_every_tokens: int
    max_restarts: int | None
    minimum_learners: int
    stuck_seconds: float | None = None
    """A learner that makes no step for this long is restarted; None: never."""
    average_last: float = 0.0
    """Share of the budget at whose end a fragment's versions are averaged."""
    quarantine_seconds: float = 600.0
    """The first quarantine of a learner; each further one is twice as long."""
    pool_minimums: tuple[PoolMinimum, ...] = ()
    """The fewest learners of every elastic pool at the start."""
    pool_terms: tuple[PoolTerms, ...] = ()
    """Of the pools at the start."""

    sizes: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """Each fragment's size relative to the mean of all, on which the duration of answers and rounds depends."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(round(share * len(self.shares), 3) for share in self.shares))

    @classmethod
    def from_job(cls, job: DiLoCoJob, layout: Layout) -> Self:
        """The options of a job and its model's layout."""
        spec, sync, training = job.spec, job.spec.sync, job.spec.training
        return cls(
            schedule=Schedule(len(layout.fragments), sync.interval, sync.least_overlap),
            overlap_limit=sync.greatest_overlap,
            learners=spec.learner_ids,
            pools=tuple(spec.pools),
            shares=layout.shares,
            quorum=sync.quorum,
            grace_safety=sync.grace.safety,
            grace_maximum_seconds=sync.grace.maximum_seconds,
            token_weights=sync.token_weights,
            max_version_lag=sync.max_version_lag,
            max_staleness_steps=sync.staleness_bound_steps,
            lease_seconds=sync.lease_seconds,
            startup_seconds=sync.startup_seconds,
            budget_tokens=training.tokens,
            evaluate_every_tokens=evaluate_every_tokens(training),
            max_restarts=spec.failure_policy.max_restarts_per_learner,
            minimum_learners=spec.failure_policy.minimum_learners,
            average_last=sync.average_last,
            stuck_seconds=spec.failure_policy.stuck_seconds or None,
            quarantine_seconds=spec.failure_policy.quarantine_seconds,
            pool_minimums=pool_minimums(spec),
            pool_terms=pool_terms(spec),
        )


def evaluate_every_tokens(training: TrainingSpec) -> int:
    """Merged tokens from one evaluation to the next."""
    every = training.evaluation.every_tokens
    return max(1, training.tokens // 10) if every is None else every


def pool_minimums(spec: JobSpec) -> tuple[PoolMinimum, ...]:
    """The fewest learners of every elastic pool, in the manifest's order."""
    return tuple(
        PoolMinimum(f"{region.name}/{pool.name}", pool.minimum_learners)
        for region in spec.regions
        for pool in region.pools
        if pool.minimum_learners is not None and pool.elastic
    )


def pool_terms(spec: JobSpec) -> tuple[PoolTerms, ...]:
    """The terms of every pool, in the manifest's order."""
    return tuple(PoolTerms(name, pool.batch_of(spec.training), pool.speed) for name, pool in spec.pools.items())
