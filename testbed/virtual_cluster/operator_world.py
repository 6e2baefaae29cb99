"""A cluster in virtual time around the pure operator: carries out plans, runs pods, lets the syncer train.

The operator reads everything from here each time, as a new process would. Every plan that is carried out is checked
against what must never happen. It does not depend on the reasons for a plan.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from diloco_operator import names
from diloco_operator.decide.observed import ChildKey, Looked, Observed, PodObserved, SyncerAway, SyncerStatusView
from diloco_operator.decide.plan import JobEvent, Plan, PodDeletion, Scaling
from diloco_operator.decide.reconcile import reconcile
from diloco_operator.manifests import Placed
from diloco_operator.observe.pods import slim_pod
from diloco_operator.options import OperatorOptions
from diloco_operator.signing import RandomCertificateMaker
from testbed.virtual_cluster.copied import copied
from testbed.virtual_cluster.world_pods import Object, Pods, is_ready, stamp
from testbed.virtual_cluster.world_syncer import WorldSyncer

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
UID = "0d1c0c0e-0000-4000-8000-000000000001"
OPTIONS = OperatorOptions(operator_namespace="diloco-system", trainer_image="registry.example/diloco:1")
TICK_SECONDS = 5.0
_CLAIM = "PersistentVolumeClaim"
_MOST_PASSES = 6


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
    children: dict[ChildKey, Object] = field(default_factory=dict)
    foreign: frozenset[ChildKey] = frozenset()
    refusals: dict[ChildKey, str] = field(default_factory=dict)
    """Objects that the API server rejects."""
    unreachable: str = ""
    """Why the operator cannot reach the syncer, although its pod is ready."""
    job_deleted: bool = False
    status_writes: int = 0
    applied: int = 0
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
        self.pods = Pods(self.now)
        self.syncer = WorldSyncer(self.name, self.job["spec"]["training"]["tokens"])
        self._serial = 0
        self._syncer_pod = ""

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

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
        return self.children[ChildKey("StatefulSet", names.stateful_set(self.name, names.PoolKey(region, name)))]

    @property
    def deployment(self) -> Object:
        return self.children[ChildKey("Deployment", names.syncer(self.name))]

    def learner_pods(self) -> list[str]:
        return [name for name, pod in self.pods.pods.items() if _component(pod) == "learner"]

    def syncer_pods(self) -> list[str]:
        return [name for name, pod in self.pods.pods.items() if _component(pod) == "syncer"]

    # The operator's side

    def observed(self, *, looked: bool = False, asked: bool = False) -> Observed:
        """The observations; pods and the syncer's status are included only if they are requested."""
        events = self.pods.events
        pods = tuple(
            PodObserved(slim_pod(copied(pod)), tuple(events.get(pod["metadata"]["uid"], ())))
            for pod in self.pods.pods.values()
        )
        of_claims = {ChildKey(_CLAIM, name): tuple(told) for name, told in self.pods.claim_events().items()}
        by_child = of_claims | {
            key: tuple(events.get(item["metadata"]["uid"], ())) for key, item in self.children.items()
        }
        return Observed(
            children=copied(self.children),
            foreign=self.foreign,
            looked=Looked(pods, by_child, self._claims_seen()) if looked else None,
            syncer=self._answer() if asked else None,
            refused={key: text for key, text in self.refusals.items() if key in self._refused},
            pods_forbidden=self.pods_forbidden,
        )

    def _claims_seen(self) -> dict[ChildKey, tuple[str, ...]]:
        return {ChildKey(_CLAIM, name): modes for name, modes in (self.pods.claims | self.claims).items()}

    def plan(self) -> Plan:
        """The operator's plan now."""
        looked = asked = False
        self._refused: set[ChildKey] = set()
        for _ in range(_MOST_PASSES):
            plan = self.decide(looked=looked, asked=asked)
            wants_look, wants_word = plan.look_closer and not looked, plan.ask_syncer and not asked
            newly = {ChildKey.of_placed(one) for one in plan.apply} & set(self.refusals)
            newly -= self._refused
            if not wants_look and not wants_word and not newly:
                return plan
            looked, asked = looked or wants_look, asked or wants_word
            self._refused |= newly
        raise AssertionError("plans keep asking for more")

    def decide(self, *, looked: bool, asked: bool) -> Plan:
        """One pass of the operator, which changes nothing."""
        observed, job = self.observed(looked=looked, asked=asked), copied(self.job)
        before = copy.deepcopy((job, observed))  # which keeps NaN equal to itself
        plan = reconcile(job, observed, self.now, self.options, RandomCertificateMaker())
        assert (job, observed) == before, "what was observed is not the operator's to change"
        assert plan.status is not None or not plan.events
        return plan

    def reconcile(self, actions: int | None = None) -> Plan:
        """Plan and carry out the plan; only this many ``actions`` of it if the operator is killed in the middle."""
        plan = self.plan()
        for action in list(self._actions(plan))[:actions]:
            action()
        self.again_in_seconds = plan.again_in_seconds
        return plan

    def _actions(self, plan: Plan) -> Iterator[Any]:
        for scaling in plan.scale:
            yield lambda scaling=scaling: self._scale(scaling)
        for one in plan.apply:
            if ChildKey.of_placed(one) not in self.refusals:
                yield lambda one=one: self._apply(one)
        for key in plan.delete:
            yield lambda key=key: self._delete(key)
        for pod in plan.delete_pods:
            yield lambda pod=pod: self._delete_pod(pod)
        if plan.delete_job:
            yield lambda: setattr(self, "job_deleted", True)
        if plan.status is not None:
            yield lambda: self._write(plan)

    def _scale(self, scaling: Scaling) -> None:
        live = self.children[scaling.child]
        assert live["metadata"]["uid"] == scaling.uid
        assert scaling.replicas < live["spec"]["replicas"]
        if scaling.child.kind == "Deployment":
            left = set(self.learner_pods()) - self.pods.stuck
            assert not left, "the syncer is stopped while learners are there"
        live["spec"]["replicas"] = scaling.replicas
        live["metadata"]["generation"] += 1

    def _apply(self, one: Placed) -> None:
        key, item = ChildKey.of_placed(one), one.body
        assert key not in self.foreign, f"{key} belongs to somebody else"
        self.applied += 1
        if key == ChildKey("Deployment", names.syncer(self.name)) and item["spec"]["replicas"] == 0:
            assert not set(self.learner_pods()) - self.pods.stuck, "the syncer is stopped while learners are there"
        live = self.children.get(key)
        if live is None:
            self._serial += 1
            live = {"metadata": {"uid": f"child-{self._serial}", "generation": 0}}
        merged = _merged(live, item)
        if key.kind == "StatefulSet":  # of these, fields are set for a while
            strategy = item["spec"].get("updateStrategy", {"type": "RollingUpdate"})
            merged["spec"] |= {"template": copied(item["spec"]["template"]), "updateStrategy": strategy}
        if merged.get("spec") != live.get("spec"):
            merged["metadata"]["generation"] += 1
        self.children[key] = merged

    def _delete(self, key: ChildKey) -> None:
        del self.children[key]

    def _delete_pod(self, deletion: PodDeletion) -> None:
        pod = self.pods.pods[deletion.child.name]
        assert pod["metadata"]["uid"] == deletion.uid
        if not deletion.by_force:
            self.pods.delete(deletion.child.name)
            return
        assert "deletionTimestamp" in pod["metadata"], "it is not to go"
        if _component(pod) == "syncer":
            told = self.job["metadata"].get("annotations", {}).get("diloco.dev/syncer-stopped")
            assert told == deletion.uid, "a second syncer may start beside the first"
        else:
            assert deletion.child.name not in self.still_heard, "the syncer still hears from its learner"
        del self.pods.pods[deletion.child.name]
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

    def _answer(self) -> SyncerStatusView | SyncerAway:
        ready = self.syncer_running()
        if not ready:
            return SyncerAway("its pod is not ready")
        if self.unreachable:
            return SyncerAway(self.unreachable)
        return SyncerStatusView.model_validate(self.syncer.status())

    # The cluster's side

    def syncer_running(self) -> bool:
        return any(is_ready(self.pods.pods[name]) for name in self.syncer_pods())

    def tick(self, seconds: float = TICK_SECONDS) -> None:
        """Time passes."""
        self.now += timedelta(seconds=seconds)
        self.pods.now = self.now
        for key, item in self.children.items():
            if key.kind in ("StatefulSet", "Deployment"):
                self.pods.set_controller(item)
            elif key.kind == "PersistentVolumeClaim":
                self.pods.claim_controller(item)
        self.pods.kubelet()
        for key, item in self.children.items():
            if key.kind in ("StatefulSet", "Deployment"):
                self.pods.set_controller(item)
        self._train(seconds)

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

    def _train(self, seconds: float) -> None:
        running = [name for name in self.syncer_pods() if is_ready(self.pods.pods[name])]
        if not running:
            self._syncer_pod = ""
            return
        uid = self.pods.pods[running[0]]["metadata"]["uid"]
        if uid != self._syncer_pod:
            self._syncer_pod = uid
            self.syncer.started()
        self.syncer.trains(seconds, self._connected())

    def _connected(self) -> list[str]:
        found = []
        for name in self.learner_pods():
            pod = self.pods.pods[name]
            if name in self.still_heard or (is_ready(pod) and "deletionTimestamp" not in pod["metadata"]):
                labels = pod["metadata"]["labels"]
                found.append(f"{labels['diloco.dev/region']}/{labels['diloco.dev/pool']}/{name.rpartition('-')[2]}")
        return found


def _component(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["app.kubernetes.io/component"])


def _merged(live: Any, desired: Any) -> Any:
    if not isinstance(live, dict) or not isinstance(desired, dict):
        return copied(desired)
    return {**live, **{key: _merged(live.get(key), value) for key, value in desired.items()}}


__all__ = ["OPTIONS", "START", "UID", "World", "job_object", "stamp"]
