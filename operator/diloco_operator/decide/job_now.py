"""One job at one moment: everything that a decision about it may use, under short names. Pure values.

Its manifest need not be readable. Then what it said of the pools is in the status, from when it could last be read. The
fields that stop a job are read one by one, so they work whatever else the manifest says.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from diloco.spec import DiLoCoJob, JobSpec
from diloco.spec.checks import MAXIMUM_LEARNERS
from diloco.spec.names.learner_orders import FAILED_FILE, READMITTED_FILE
from diloco.spec.placement import Pool
from diloco.spec.status.job import JobStatus, PoolStatus, UnplacedLearner
from diloco_operator import labels, names
from diloco_operator.decide.causes.syncer import cut_off
from diloco_operator.decide.causes.volume import START_ANEW, Volume
from diloco_operator.decide.clusters import FINALIZER, GIVE_UP_PLACE, HOME, Clusters, said_regions, with_same_places
from diloco_operator.decide.ending.ending import recorded_end
from diloco_operator.decide.ending.stopping import LostPodPolicy, PodsLeft, pods_left, policy_of
from diloco_operator.decide.learners.failing import failing
from diloco_operator.decide.learners.held_pods import Holding, SetUid, holding, pods_by_set, set_of
from diloco_operator.decide.learners.readmission import (
    READMIT,
    Readmissions,
    given_up_now,
    not_ordered,
    orders_told,
    readmitted,
)
from diloco_operator.decide.learners.unplaced import PATIENCE_SECONDS, unplaced
from diloco_operator.decide.objects.endpoint import Endpoint, endpoint
from diloco_operator.decide.objects.workloads import (
    STATEFUL_SET,
    PoolWorkload,
    component,
    is_bound,
    may_have_outdated,
    pool_workloads,
    replicas,
    syncer_claim,
    syncer_deployment,
    syncer_ready,
)
from diloco_operator.decide.observed import ChildKey, KueueSeen, Object, Observed, PodObserved, SyncerStatusView
from diloco_operator.decide.queue.queue_now import QueueNow, workloads_of
from diloco_operator.manifests.placement.holds import creates_gated
from diloco_operator.names import PoolKey, SetNames
from diloco_operator.objects import mapping
from diloco_operator.options import OperatorOptions


@dataclass(frozen=True)
class JobNow:
    """What `reconcile` was given."""

    given: Object
    """The DiLoCoJob as the API server hands it out."""
    job: DiLoCoJob | None
    """The same, parsed and as it is to be carried out; None: its manifest cannot be."""
    before: JobStatus
    """The status as it was last written."""
    observed: Observed
    now: datetime
    options: OperatorOptions
    elsewhere: Mapping[PoolKey, int] = field(default_factory=dict)
    """Learners of a pool that run in the region's next one, of which ``job`` has so many more."""
    outdated: frozenset[str] = frozenset()
    """Names of Workloads whose quota is for other pods than those that would start (`queue.shares.outdated`)."""

    # What the job says

    @property
    def manifest(self) -> DiLoCoJob:
        """The job, parsed; only of one that can be carried out."""
        assert self.job is not None
        return self.job

    @property
    def spec(self) -> JobSpec:
        """As `manifest`."""
        return self.manifest.spec

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.given["metadata"]["name"])

    @property
    def generation(self) -> int:
        """Of its manifest."""
        return int(self.given["metadata"].get("generation") or 0)

    @property
    def suspend(self) -> bool:
        """Whether it is to be stopped."""
        return self._said.get("suspend") is True

    @cached_property
    def queue(self) -> QueueNow | None:
        """The queue of Kueue that its pods wait in; None: they do not, or its manifest cannot be read."""
        if self.job is None or self.spec.queue is None:
            return None
        seen, found = self.observed.kueue or KueueSeen(), workloads_of(self.observed.children)
        serves = self.deployment is not None and replicas(self.deployment) > 0
        return QueueNow(self.manifest, self.pools, self.set_names, seen, found, self.outdated, serves)

    @property
    def runs(self) -> bool:
        """Whether its syncer should run: it is not suspended, nor does it wait for quota."""
        return not self.suspend and (self.queue is None or self.queue.runs)

    @property
    def active_deadline_seconds(self) -> int | None:
        """``spec.activeDeadlineSeconds``; None: there is none that can be read."""
        return _number(self._said.get("activeDeadlineSeconds"))

    @property
    def ttl_seconds_after_finished(self) -> int | None:
        """``spec.ttlSecondsAfterFinished``; None: there is none that can be read."""
        return _number(self._said.get("ttlSecondsAfterFinished"))

    @property
    def budget_tokens(self) -> int | None:
        """``spec.training.tokens``; None: there is none that can be read."""
        return _number(mapping(self._said.get("training")).get("tokens"))

    @property
    def _said(self) -> dict[str, Any]:
        found = self.given.get("spec")
        return found if isinstance(found, dict) else {}

    def annotation(self, name: str) -> str:
        """An annotation of the job; empty if it has none of this name."""
        return str((self.given["metadata"].get("annotations") or {}).get(name, ""))

    @property
    def lost_pod_policy(self) -> LostPodPolicy:
        """What becomes of pods on nodes that do not respond."""
        return policy_of(self.given)

    @property
    def this_second(self) -> datetime:
        """The time to record, in whole seconds."""
        return self.now.replace(microsecond=0)

    @property
    def revoked(self) -> dict[PoolKey, datetime]:
        """As of when certificates of pools are revoked."""
        pools = self.pools.items()
        return {key: pool.certificates_not_before for key, pool in pools if pool.certificates_not_before}

    @cached_property
    def readmitted(self) -> Readmissions:
        """Which given-up learners are let back in."""
        annotation = self.annotation(READMIT)
        if self.job is None:
            return Readmissions(problem=not_ordered(annotation, self.observed.children, self.name))
        known = {f"{key}/{index}" for key, pool in self.pools.items() for index in range(pool.learners)}
        return readmitted(annotation, known, self.observed, self.before, self.name)

    # What runs

    @property
    def told(self) -> SyncerStatusView | None:
        """The syncer's report; None: there is none, or the job has ended before, and nothing more is to come."""
        view = self.observed.syncer
        return view if isinstance(view, SyncerStatusView) and recorded_end(self.before) is None else None

    @cached_property
    def clusters(self) -> Clusters:
        """Where its regions are."""
        finalizers = self.given["metadata"].get("finalizers") or ()
        return Clusters(
            regions=said_regions(self.given),
            seen=with_same_places(
                {name: seen for name, seen in self.observed.clusters.items() if seen.settled}, self.observed.children
            ),
            before={region.name: region for region in self.before.regions},
            unscalable={key.cluster for key in self.observed.refused if key.kind == STATEFUL_SET},
            finalized=FINALIZER in finalizers,
            now=self.now,
            options=self.options,
            former=self.before.former_clusters,
            inhabited={key.cluster for key in self.observed.children},
            given_up=self.annotation(GIVE_UP_PLACE),
        )

    @property
    def volume(self) -> Volume:
        """The claim that holds its training."""
        return Volume(
            name=names.syncer(self.name),
            remembered=self.before.syncer.claim_uid if self.before.syncer else "",
            claim=self.claim,
            start_anew=self.annotation(START_ANEW),
        )

    @property
    def deployment(self) -> Object | None:
        """The syncer's Deployment."""
        return syncer_deployment(self.name, self.observed.children)

    @property
    def syncer_pods(self) -> list[PodObserved]:
        """Those of the syncer, which is at home; empty where the pods were not listed."""
        pods = () if self.observed.looked is None else self.observed.looked.pods
        return [one for one in pods if one.cluster == HOME and component(one.pod) == labels.SYNCER]

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
    def desired_learners(self) -> dict[PoolKey, int]:
        """Learners of every pool when the job runs, in the manifest's order; of elastic pools the most."""
        return {key: pool.learners for key, pool in self.pools.items()}

    @cached_property
    def pools(self) -> Mapping[PoolKey, Pool]:
        """Its pools, in the manifest's order."""
        return names.pools(self.spec)

    @cached_property
    def set_names(self) -> SetNames:
        """What its pools' StatefulSets are called."""
        return names.stateful_sets(self.name, self.pools)

    @cached_property
    def workloads(self) -> list[PoolWorkload]:
        """Its pools, in the manifest's order."""
        if self.job is None:
            return list(self._remembered_workloads())
        pools, regions = self.pools, self.clusters.regions
        out = given_up_now(self.observed, self.before)
        found = pool_workloads(self.set_names, pools, regions, self.observed.children, out)
        moved = (replace(one, elsewhere=self.elsewhere.get(one.pool, 0)) for one in found)
        if (queue := self.queue) is not None:
            moved = (replace(one, in_queue=True, queued=queue.queued(one.pool)) for one in moved)
        return [replace(one, unplaced=self._unplaced(one, pools[one.pool])) for one in moved]

    def _unplaced(self, workload: PoolWorkload, pool: Pool) -> tuple[UnplacedLearner, ...]:
        if self.suspend or workload.nodes == 1 or workload.healthy:
            return ()
        known = self.pools_before.get(workload.pool, PoolStatus(name="")).unplaced or ()
        if self.pods_by_set is None or not self.clusters.answers(workload.key.cluster):
            return known
        patience = timedelta(seconds=pool.fallback_after_seconds or PATIENCE_SECONDS)
        return unplaced(workload, known, self.pods_by_set.get(set_of(workload), {}), self.now, patience)

    @cached_property
    def pools_before(self) -> dict[PoolKey, PoolStatus]:
        """The pools of the status as it was last written."""
        return {PoolKey(region.name, pool.name): pool for region in self.before.regions for pool in region.pools}

    def ready_learners(self, workload: PoolWorkload) -> int:
        """Learners of a pool of which every pod is ready; at most so many where the pods were not listed."""
        pods = (self.pods_by_set or {}).get(set_of(workload))
        if pods is None or workload.nodes == 1:
            return workload.ready_pods // workload.nodes
        return sum(workload.is_ready(its) for its in workload.by_learner(pods).values())

    def _remembered_workloads(self) -> Iterator[PoolWorkload]:
        out = given_up_now(self.observed, self.before)
        for region in self.before.regions:
            cluster = self.clusters.regions.get(region.name, HOME)
            for pool in region.pools:
                key = ChildKey(STATEFUL_SET, pool.stateful_set, cluster)
                live = self.observed.children.get(key)
                nodes = pool.nodes_per_learner or 1
                # Another cluster's server may say any number of pods.
                there = range(0 if live is None else min(replicas(live) // nodes, MAXIMUM_LEARNERS))
                known = {*there, *(pool.given_up or ())}
                gone = frozenset(index for index in known if f"{region.name}/{pool.name}/{index}" in out)
                yield PoolWorkload(
                    *(PoolKey(region.name, pool.name), key, live, pool.desired, pool.minimum),
                    given_up=gone,
                    elsewhere=pool.fallback_learners or 0,
                    nodes=nodes,
                    unplaced=pool.unplaced or (),
                )

    @property
    def workloads_in_reach(self) -> list[PoolWorkload]:
        """Those in clusters that answer."""
        return [workload for workload in self.workloads if self.clusters.answers(workload.key.cluster)]

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

    # What its pods show

    @property
    def needs_pods(self) -> bool:
        """Whether the pods have to be listed: some that should run do not, or some are left that should not be."""
        if self.given["metadata"].get("deletionTimestamp"):
            return False
        if recorded_end(self.before) is not None:
            return self.pods_left.any or bool(workloads_of(self.observed.children))
        if not self.runs:
            # List the pods before reporting that none is left.
            return self.pods_left.any or (self.suspend and not self.was_suspended) or self._returns_quota
        if self.job is None and not self.pods_left.syncers:
            return False
        return self._unhealthy or any(map(_needs_replacing, self.workloads_in_reach)) or self._returns_quota

    @property
    def _returns_quota(self) -> bool:
        """Whether there is quota to give back once the pods that use it have ended, which sets do not count."""
        found = workloads_of(self.observed.children)
        if self.suspend or not found or (queue := self.queue) is None:
            return self.suspend and bool(found)
        further = queue.further({one.pool: one.given_up for one in self.workloads})
        wanted = {queue.first_name, *(queue.own_name(pool, index) for pool, index in further)}
        return any(name not in wanted or (one.evicted and one.reserved) for name, one in found.items())

    @property
    def _unhealthy(self) -> bool:
        """Whether something that should run does not; what was last seen in clusters that are away does not count."""
        sets = [workload for workload in self.workloads_in_reach if workload.live is not None]
        return (
            # A pod too many is on its way out, or cannot be ended.
            any(not workload.healthy or workload.surplus for workload in sets)
            or (self.deployment is not None and not syncer_ready(self.deployment))
            or (self.claim is not None and not is_bound(self.claim))
            or self._misses_learners
        )

    @property
    def _misses_learners(self) -> bool:
        """Whether the syncer no longer hears from learners that should run."""
        gone = {} if self.told is None else cut_off(self.told)
        wanted = (f"{one.pool}/{index}" for one in self.workloads_in_reach for index in one.indices - one.out)
        return bool(gone) and any(learner in gone for learner in wanted)

    @property
    def was_suspended(self) -> bool:
        """Whether the job has stopped before."""
        return any((one.type, one.status) == ("Suspended", "True") for one in self.before.conditions)

    @cached_property
    def pods_by_set(self) -> dict[SetUid, dict[int, Object]] | None:
        """The pods of each set, by index; None: they were not listed."""
        return None if self.observed.looked is None else pods_by_set(self.observed.looked.pods)

    @cached_property
    def holdings(self) -> dict[ChildKey, Holding]:
        """What is done about held and outdated pods, by set; nothing while the job is to stop."""
        if not self.runs or self.job is None:
            return {}
        pods = self.pods_by_set
        return {
            one.key: holding(
                *(one, None if pods is None else pods.get(set_of(one), {})),
                *(self.now, self.lost_pod_policy.after_seconds),
                may_delete=one.key.cluster not in self.observed.pods_forbidden,
            )
            for one in self.workloads
            if _needs_replacing(one) or one.in_queue
        }

    @cached_property
    def pods_left(self) -> PodsLeft:
        """Pods that exist or may be being created."""
        after_seconds = self.lost_pod_policy.after_seconds
        return pods_left(self.observed.children, self.observed.looked, self.clusters, after_seconds)


def _needs_replacing(workload: PoolWorkload) -> bool:
    """Whether pods may have to be deleted, to be created anew."""
    live = workload.live
    gates = live is not None and creates_gated(live) and not workload.in_queue
    return bool(workload.held) or gates or may_have_outdated(workload)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
