"""One job at one moment: everything that a decision about it may use, under short names. Pure values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from diloco.spec import DiLoCoJob, JobSpec
from diloco.spec.learner_orders import FAILED_FILE, READMITTED_FILE
from diloco.spec.status import AvoidedNode, JobStatus
from diloco_operator import names
from diloco_operator.decide.avoided_nodes import PoolPods, avoided_nodes, nodes_to_avoid
from diloco_operator.decide.causes.volume import Volume
from diloco_operator.decide.clock import latest_known
from diloco_operator.decide.clusters import Clusters
from diloco_operator.decide.endpoint import Endpoint, endpoint
from diloco_operator.decide.failing import failing
from diloco_operator.decide.held_pods import Holding, SetUid, holding, pods_by_set, set_of
from diloco_operator.decide.lost_pods import LostPodPolicy, lost_pods, policy_of
from diloco_operator.decide.lost_pods import Scene as LostScene
from diloco_operator.decide.lost_pods import Verdict as LostVerdict
from diloco_operator.decide.observed import ChildKey, Object, Observed, SyncerStatusView
from diloco_operator.decide.readmission import Readmissions, given_up_now, orders_told, readmitted
from diloco_operator.decide.revocation import Revoked
from diloco_operator.decide.stopping import PodsLeft, pods_left
from diloco_operator.decide.workloads import (
    PoolWorkload,
    pool_workloads,
    set_names,
    syncer_claim,
    syncer_deployment,
)
from diloco_operator.manifests.holds import is_held_back
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
    clusters: Clusters
    """Where its regions are."""
    revoked: Revoked = field(default_factory=Revoked)
    """Whose certificates the user has revoked."""
    lost_pod_policy: LostPodPolicy = field(default_factory=lambda: policy_of({}))
    """What becomes of pods on nodes that do not respond."""
    syncer_stopped: str = ""
    """The uid of the syncer's pod whose machine is off, as the user says; empty: none."""
    elsewhere: Mapping[PoolKey, int] = field(default_factory=dict)
    """Learners of a pool that run in the region's next one, of which ``job`` has so many more."""
    readmit: str = ""
    """The annotation that lets learners back in; empty: the job has none."""
    created: datetime | None = None
    """When the job was made, by the API server's clock; None: not known."""

    @property
    def latest(self) -> datetime:
        """The time to record, by a clock that may be behind."""
        return latest_known(self.before, self.created, self.now)

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
        """Pods of every pool when the job runs, in the manifest's order; of elastic pools the most."""
        return {key: pool.learners for key, pool in names.pools(self.spec).items()}

    @cached_property
    def set_names(self) -> SetNames:
        """What its pools' StatefulSets are called."""
        said = {PoolKey(r.name, pool.name): pool.stateful_set for r in self.before.regions for pool in r.pools}
        seen = self.observed
        here = [pool for pool in self.desired_learners if not self.clusters.regions[pool.region]]
        found = set_names(self.name, here, seen.children, seen.foreign, said)
        # In other clusters there are no sets of earlier versions, and labels can be written by others.
        return {pool: found.get(pool) or names.stateful_set(self.name, pool) for pool in self.desired_learners}

    @cached_property
    def workloads(self) -> list[PoolWorkload]:
        """Its pools, in the manifest's order."""
        pools, regions = names.pools(self.spec), self.clusters.regions
        found = pool_workloads(self.set_names, pools, regions, self.observed.children, self.given_up)
        return [
            replace(
                one,
                avoid=nodes_to_avoid(one, self.before.avoided_nodes, self.now),
                elsewhere=self.elsewhere.get(one.pool, 0),
            )
            for one in found
        ]

    @cached_property
    def given_up(self) -> frozenset[str]:
        """The learners that the syncer has given up, as it reports or last reported."""
        return given_up_now(self.observed, self.before)

    @cached_property
    def readmitted(self) -> Readmissions:
        """Which of them are let back in."""
        if not self.readmit:
            return Readmissions()
        known = {f"{key}/{index}" for key, pool in names.pools(self.spec).items() for index in range(pool.learners)}
        return readmitted(self.readmit, known, self.observed, self.before, self.name)

    @cached_property
    def orders(self) -> dict[str, str]:
        """What the syncer is told of single learners: files by name, without empty ones."""
        files = {READMITTED_FILE: self.readmitted.file, FAILED_FILE: self._failing}
        return {name: text for name, text in files.items() if text}

    @property
    def _failing(self) -> str:
        view, pods = self.observed.syncer, self.pods_by_set
        allowed = self.spec.failure_policy.max_restarts_per_learner
        if allowed is None or pods is None or not isinstance(view, SyncerStatusView):
            return ""
        told = orders_told(self.observed.children, self.name, FAILED_FILE)
        return failing(self.workloads, pods, view, allowed, told)

    @cached_property
    def pods_by_set(self) -> dict[SetUid, dict[int, Object]] | None:
        """The pods of each set, by index; None: they were not listed."""
        return None if self.observed.looked is None else pods_by_set(self.observed.looked.pods)

    @cached_property
    def avoided(self) -> tuple[AvoidedNode, ...]:
        """The nodes to be avoided from now on. Those in the status before are avoided already."""
        there = self.pods_by_set or {}
        seen = [PoolPods(one, there.get(set_of(one), {})) for one in self.workloads]
        return avoided_nodes(self.before.avoided_nodes, seen, self.now, self.observed.pods_forbidden)

    @cached_property
    def holdings(self) -> dict[ChildKey, Holding]:
        """What is done about held pods and avoided nodes, by set; nothing while the job is to stop."""
        if self.spec.suspend:
            return {}
        pods = self.pods_by_set
        return {
            one.key: holding(
                *(one, None if pods is None else pods.get(set_of(one), {})),
                *(self.now, self.lost_pod_policy.after_seconds),
                may_delete=one.key.cluster not in self.observed.pods_forbidden,
            )
            for one in self.workloads
            if _needs_holding(one)
        }

    @property
    def holds(self) -> bool:
        """Whether pods are held back or avoid nodes, or did, in clusters that answer."""
        return not self.spec.suspend and any(map(_needs_holding, self.workloads_in_reach))

    @property
    def workloads_in_reach(self) -> list[PoolWorkload]:
        """Those in clusters that answer."""
        return [workload for workload in self.workloads if self.clusters.answers(workload.key.cluster)]

    @property
    def deployment(self) -> Object | None:
        """The syncer's Deployment."""
        return syncer_deployment(self.name, self.observed.children)

    @property
    def claim(self) -> Object | None:
        """The syncer's claim."""
        return syncer_claim(self.name, self.observed.children)

    @property
    def external_endpoint(self) -> Endpoint:
        """Where learners of other clusters reach its syncer."""
        service = self.observed.children.get(ChildKey("Service", names.exposed_syncer(self.name)))
        known = self.before.syncer.external_endpoint if self.before.syncer else ""
        return endpoint(self.spec.syncer.expose, service, known)

    @property
    def pods_left(self) -> PodsLeft:
        """Pods that exist or may be being created."""
        after_seconds = self.lost_pod_policy.after_seconds
        return pods_left(self.observed.children, self.observed.looked, self.clusters, after_seconds)

    def lost_pods(self, *, stopping: bool) -> LostVerdict:
        """Its pods on nodes that do not respond; ``stopping``: it is suspended."""
        return lost_pods(
            LostScene(
                workloads=self.workloads,
                observed=self.observed,
                clusters=self.clusters,
                policy=self.lost_pod_policy,
                deployment=self.deployment,
                syncer_stopped=self.syncer_stopped,
                stopping=stopping,
            )
        )

    @property
    def endpoint(self) -> str:
        """``host:port`` by which learners in other clusters reach the syncer; empty: not known yet."""
        return self.external_endpoint.address


def _needs_holding(workload: PoolWorkload) -> bool:
    return bool(workload.held or workload.avoid or is_held_back(workload.live))
