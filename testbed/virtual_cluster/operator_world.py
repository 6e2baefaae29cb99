"""A cluster in virtual time around the pure operator: carries out plans, runs pods, lets the syncer train.

The operator reads everything from here each time, as a new process would. Every plan that is carried out is checked
against what must never happen. It does not depend on the reasons for a plan.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self

from diloco_operator import labels, names
from diloco_operator.decide.clusters import FINALIZER
from diloco_operator.decide.objects.drift import applied_as
from diloco_operator.decide.objects.workloads import syncer_ready
from diloco_operator.decide.observed import (
    Applied,
    ChildKey,
    Observed,
    PodList,
    PodObserved,
    SyncerAway,
    SyncerStatusView,
)
from diloco_operator.decide.plan import JobEvent, Plan, PodDeletion, Scaling
from diloco_operator.decide.reconcile import needs_pods, reconcile
from diloco_operator.jobs.observe.pods import slim_pod
from diloco_operator.manifests import Placed
from diloco_operator.options import OperatorOptions
from diloco_operator.signing import RandomCertificateMaker
from testbed.virtual_cluster.namespace import START, Cluster
from testbed.virtual_cluster.world_pods import Object, Pods, copied
from testbed.virtual_cluster.world_syncer import WorldSyncer

UID = "0d1c0c0e-0000-4000-8000-000000000001"
OPTIONS = OperatorOptions(operator_namespace="diloco-system", trainer_image="registry.example/diloco:1")
TICK_SECONDS = 5.0
_CLAIM = "PersistentVolumeClaim"
_MOST_PASSES = 6
_PASSES_BETWEEN_CHECKS = 25


def job_object(name: str = "demo", *, tokens: int = 60_000, **spec: Any) -> Object:
    """Four learners in two regions; 150 seconds of training with all of them."""
    return {
        "apiVersion": "diloco.dev/v1alpha1",
        "kind": "DiLoCoJob",
        "metadata": {"name": name, "namespace": "team", "uid": UID, "generation": 1},
        "spec": {
            "model": {"builtin": {"preset": "pico"}},
            "data": {"text": {}},
            "training": {"tokens": tokens, "sequenceLength": 16, "batchSize": 2},
            "regions": [
                {"name": "us-east", "pools": [{"name": "new", "learners": 1}]},
                {"name": "us-west", "pools": [{"name": "old", "learners": 3}]},
            ],
            **spec,
        },
    }


@dataclass
class World:
    """One job with its cluster."""

    job: Object = field(default_factory=job_object)
    options: OperatorOptions = OPTIONS
    now: datetime = START
    foreign: frozenset[ChildKey] = frozenset()
    refusals: dict[ChildKey, str] = field(default_factory=dict)
    """Objects that the API server rejects."""
    unreachable: str = ""
    """Why the operator cannot reach the syncer, although its pod is ready."""
    job_deleted: bool = False
    status_writes: int = 0
    still_heard: set[str] = field(default_factory=set)
    """Pods on lost nodes whose learners train on: only the API server does not reach the node."""
    claims: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Access modes of the users' claims."""
    pods_forbidden: frozenset[str] = frozenset()
    """Clusters whose API server does not let the operator delete pods; the empty name is home."""
    forced: list[PodDeletion] = field(default_factory=list)
    """Pods that were deleted by force."""
    events: list[JobEvent] = field(default_factory=list)
    again_in_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.home = Cluster(now=self.now)
        self.others: dict[str, Cluster] = {}
        """The namespaces of other clusters, by the name of the cluster."""
        self.syncer = WorldSyncer(self.name, self.job["spec"]["training"]["tokens"])
        self._refused: set[ChildKey] = set()
        self._passes = 0
        self._applied: dict[ChildKey, Applied] = {}

    def another(self) -> Self:
        """A copy. Its first pass is checked."""
        world = copied(self)
        world._passes = 0
        return world

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.job["metadata"]["uid"])

    @property
    def pods(self) -> Pods:
        """Those at home."""
        return self.home.pods

    @property
    def status(self) -> Object:
        return self.job.get("status") or {}

    def condition(self, type_: str) -> Object:
        return next(one for one in self.status["conditions"] if one["type"] == type_)

    def change(self, **spec: Any) -> None:
        """Change the job as a user."""
        self.job["spec"] |= spec
        self.job["metadata"]["generation"] += 1

    def scale(self, region: int, learners: int) -> None:
        """Change the number of learners of a region's only pool as a user."""
        regions = copied(self.job["spec"]["regions"])
        regions[region]["pools"][0]["learners"] = learners
        self.change(regions=regions)

    def set_named(self, pool: str) -> Object:
        region, _, name = pool.partition("/")
        return self.home.objects["StatefulSet", names.stateful_set(self.name, names.PoolKey(region, name))]

    def pods_of(self, component: str) -> list[str]:
        """Names of pods at home."""
        return self.home.pods_of(component, self.name)

    # The operator's side

    def observed(self) -> Observed:
        """The observations, with the pods."""
        children = {ChildKey(*key): item for key, item in copied(self.home.objects).items()}
        events = {key: self._events(item) for key, item in children.items()}
        events |= {ChildKey(_CLAIM, name): tuple(told) for name, told in self.pods.claim_events().items()}
        pods = [PodObserved(slim_pod(copied(pod)), self._events(pod)) for pod in self.pods.pods.values()]
        foreign = set(self.foreign)
        clusters = {name: other.look() for name, other in self.others.items()}
        for name, other in self.others.items():
            seen = {ChildKey(*key, name): item for key, item in copied(other.seen).items()}
            for key, item in seen.items():
                if key.kind not in other.unlisted and self._owns(item):
                    children[key] = item
                elif key.kind not in other.unlisted:
                    foreign.add(key)
            if other.state.takes_writes:
                pods += [PodObserved(slim_pod(copied(pod)), cluster=name) for pod in other.pods.pods.values()]
        return Observed(
            children=children,
            foreign=frozenset(foreign),
            looked=PodList(tuple(pods), events, self._claims_seen()),
            syncer=self._answer(),
            applied=dict(self._applied),
            refused={key: text for key, text in self.refusals.items() if key in self._refused},
            pods_forbidden=self.pods_forbidden,
            clusters=clusters,
        )

    def _events(self, item: Object) -> tuple[Object, ...]:
        return tuple(self.pods.events.get(item["metadata"]["uid"], ()))

    def _owns(self, item: Object) -> bool:
        """Whether an object in another cluster is the job's."""
        return labels.belongs(item["metadata"].get("labels"), self.uid)

    def _claims_seen(self) -> dict[ChildKey, tuple[str, ...]]:
        return {ChildKey(_CLAIM, name): modes for name, modes in (self.pods.claims | self.claims).items()}

    def plan(self) -> Plan:
        """The operator's plan now."""
        self._refused = set()
        for _ in range(_MOST_PASSES):
            plan = self.decide()
            newly = ({ChildKey.of_placed(one) for one in plan.apply} & set(self.refusals)) - self._refused
            if not newly:
                return plan
            self._refused |= newly
        raise AssertionError("objects keep being refused")

    def decide(self) -> Plan:
        """One pass of the operator, which changes nothing."""
        observed, job = self.observed(), copied(self.job)
        unlooked = replace(observed, looked=None)
        if not needs_pods(job, unlooked, self.now, self.options):
            observed = unlooked
        # Not every time: the copy takes a third of what a pass does. It keeps NaN equal to itself.
        before = None if self._passes % _PASSES_BETWEEN_CHECKS else copy.deepcopy((job, observed))
        self._passes += 1
        plan = reconcile(job, observed, self.now, self.options, RandomCertificateMaker())
        assert before in (None, (job, observed)), "what was observed is not the operator's to change"
        assert plan.status is not None or not plan.events or "deletionTimestamp" in job["metadata"]
        return plan

    def reconcile(self, actions: int | None = None) -> Plan:
        """Plan and carry out the plan; only this many ``actions`` of it if the operator is killed in the middle."""
        plan = self.plan()
        for action in list(self._actions(plan))[:actions]:
            action()
        self.again_in_seconds = plan.again_in_seconds
        return plan

    def _actions(self, plan: Plan) -> Iterator[Any]:
        yield from (partial(self._scale, one) for one in plan.scale)
        yield from (partial(self._apply, one) for one in plan.apply if ChildKey.of_placed(one) not in self.refusals)
        yield from (partial(self._delete, one) for one in plan.delete)
        yield from (partial(self._delete_pod, one) for one in plan.delete_pods)
        if plan.delete_job:
            yield lambda: setattr(self, "job_deleted", True)
        if plan.status is not None:
            yield partial(self._write, plan)

    def _scale(self, scaling: Scaling) -> None:
        live = self._written(scaling.child)
        if live is None:
            return
        assert live["metadata"]["uid"] == scaling.uid
        assert scaling.replicas < live["spec"]["replicas"]
        self._check_stop(scaling.child, scaling.replicas)
        live["spec"]["replicas"] = scaling.replicas
        live["metadata"]["generation"] += 1

    def _apply(self, one: Placed) -> None:
        key, place = ChildKey.of_placed(one), self._place(one.cluster)
        if one.cluster:
            assert FINALIZER in self.job["metadata"].get("finalizers", []), "nothing would delete it with the job"
        self._check_stop(key, one.body.get("spec", {}).get("replicas"))
        self._written(key)
        if not place.refuses:
            self._applied[key] = applied_as(one.body, place.apply(one.body))

    def _delete(self, key: ChildKey) -> None:
        if self._written(key) is not None:
            self._place(key.cluster).delete(key.kind, key.name)

    def _place(self, cluster: str) -> Cluster:
        return self.others[cluster] if cluster else self.home

    def _written(self, key: ChildKey) -> Object | None:
        """The object before a write to it; None: there is none, or the write is refused."""
        place = self._place(key.cluster)
        assert place.state.takes_writes, f"{key}: its cluster does not answer"
        live = place.objects.get((key.kind, key.name))
        theirs = key in self.foreign
        if key.cluster and live is not None:
            theirs = not self._owns(live)
        assert not theirs, f"{key} belongs to somebody else"
        place.writes += 1
        return None if place.refuses else live

    def _check_stop(self, key: ChildKey, replicas: int | None) -> None:
        if key.kind == "Deployment" and replicas == 0:
            left = set(self.pods_of("learner")) - self.pods.stuck
            assert not left, "the syncer is stopped while learners are there"

    def _delete_pod(self, deletion: PodDeletion) -> None:
        cluster, name = deletion.child.cluster, deletion.child.name
        place = self._place(cluster)
        assert place.state.takes_writes, f"{cluster} does not answer"
        metadata = place.pods.pods[name]["metadata"]
        assert metadata["uid"] == deletion.uid
        assert not cluster or metadata["labels"].get(labels.JOB_UID) == self.uid, "it is another job's"
        if not deletion.by_force:
            place.pods.delete(name)
            return
        assert "deletionTimestamp" in metadata, "it is not to go"
        if metadata["labels"][labels.COMPONENT] == "syncer":
            told = self.job["metadata"].get("annotations", {}).get("diloco.dev/syncer-stopped")
            assert told == deletion.uid, "a second syncer may start beside the first"
        else:
            assert name not in self.still_heard, "the syncer still hears from its learner"
        del place.pods.pods[name]
        self.forced.append(deletion)

    def _write(self, plan: Plan) -> None:
        self.job["status"] = copied(plan.status)
        self.status_writes += 1
        self.events += plan.events
        for condition in self.status["conditions"]:
            assert len(condition["message"]) <= 1024
        ends = [c for c in self.status["conditions"] if c["type"] in ("Complete", "Failed") and c["status"] == "True"]
        assert len(ends) <= 1
        if self.condition("Suspended")["status"] == "True" and not ends and "startTime" not in self.status:
            assert not set(self.pods.pods) - self.pods.stuck, "it is reported as suspended, and has pods"

    def _answer(self) -> SyncerStatusView | SyncerAway | None:
        deployment = self.home.objects.get(("Deployment", names.syncer(self.name)))
        if deployment is None:
            return None
        if not syncer_ready(deployment):
            return SyncerAway("its pod is not ready")
        if self.unreachable:
            return SyncerAway(self.unreachable)
        return SyncerStatusView.model_validate(self.syncer.status())

    # The cluster's side

    def tick(self, seconds: float = TICK_SECONDS) -> None:
        self.now += timedelta(seconds=seconds)
        self.home.tick(self.now)
        if self.syncer.runs_in(self.home.ready_syncer(self.name)):
            manifest = self.home.objects.get(("ConfigMap", names.config_map(self.name)))
            if manifest is not None:
                self.syncer.reads(manifest["data"])
            self.syncer.trains(seconds, self._connected())

    def run(self, seconds: float, every: float = TICK_SECONDS) -> None:
        """Let time pass while the operator works."""
        self.reconcile()
        until = self.now + timedelta(seconds=seconds)
        while self.now < until and not self.job_deleted:
            self.tick(every)
            self.reconcile()
            for _ in range(3):
                # A plan that requests another one at once gets it.
                if self.again_in_seconds == 0.0:
                    self.reconcile()

    def _connected(self) -> list[str]:
        return self.home.working_learners(self.name, *self.still_heard)
