"""One job at one moment: everything that a decision about it may use, under short names. Pure values."""

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from diloco.spec import DiLoCoJob, JobSpec
from diloco.spec.status import JobStatus
from diloco_operator import names
from diloco_operator.decide.causes.volume import Volume
from diloco_operator.decide.observed import Object, Observed
from diloco_operator.decide.stopping import PodsLeft, pods_left
from diloco_operator.decide.workloads import (
    PoolWorkload,
    pool_workloads,
    set_names,
    syncer_claim,
    syncer_deployment,
)
from diloco_operator.names import PoolKey, SetNames
from diloco_operator.options import OperatorOptions
from diloco_operator.signing import CertificateMaker


@dataclass(frozen=True)
class JobNow:
    """What `reconcile` was given, validated and parsed."""

    job: DiLoCoJob
    before: JobStatus
    """The status as it was last written."""
    observed: Observed
    now: datetime
    options: OperatorOptions
    maker: CertificateMaker
    volume: Volume
    """The claim that holds its training."""

    @property
    def spec(self) -> JobSpec:
        """What is wanted."""
        return self.job.spec

    @property
    def name(self) -> str:
        """The job's name."""
        return self.job.metadata.name

    @cached_property
    def desired_learners(self) -> dict[PoolKey, int]:
        """Learners of every pool when the job runs, in the manifest's order."""
        return {key: pool.learners for key, pool in names.pools(self.spec).items()}

    @cached_property
    def set_names(self) -> SetNames:
        """What its pools' StatefulSets are called."""
        said = {PoolKey(r.name, pool.name): pool.stateful_set for r in self.before.regions for pool in r.pools}
        seen = self.observed
        return set_names(self.name, self.desired_learners, seen.children, seen.foreign, said)

    @cached_property
    def workloads(self) -> list[PoolWorkload]:
        """Its pools, in the manifest's order."""
        return pool_workloads(self.set_names, self.desired_learners, self.observed.children)

    @property
    def deployment(self) -> Object | None:
        """The syncer's Deployment."""
        return syncer_deployment(self.name, self.observed.children)

    @property
    def claim(self) -> Object | None:
        """The syncer's claim."""
        return syncer_claim(self.name, self.observed.children)

    @property
    def pods_left(self) -> PodsLeft:
        """Pods that exist or may be being created."""
        return pods_left(self.observed.children, self.observed.looked, self.now)
