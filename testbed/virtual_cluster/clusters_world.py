"""One job over several clusters in virtual time: others may be away, refuse writes, and hold objects of strangers.

It checks every write: nothing is sent to a cluster that does not answer, nothing that belongs to somebody else is
written or deleted, and no pod that should run is ended.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from diloco_operator import labels
from diloco_operator.clusters.state import ClusterSeen, ClusterState, Expiring
from diloco_operator.decide.clusters import FINALIZER
from diloco_operator.decide.observed import ChildKey, Observed, PodObserved
from diloco_operator.decide.plan import Plan, PodDeletion, Scaling
from diloco_operator.decide.reconcile import reconcile
from diloco_operator.decide.sweep import SweptJob, orphans, suspects
from diloco_operator.manifests import Placed
from diloco_operator.observe.pods import slim_pod
from diloco_operator.options import OperatorOptions
from diloco_operator.signing import RandomCertificateMaker
from testbed.virtual_cluster.copied import copied
from testbed.virtual_cluster.operator_world import TICK_SECONDS, World, job_object
from testbed.virtual_cluster.world_pods import Object, Pods, is_ready, stamp

HOME_ID = "home-1"
OPTIONS = OperatorOptions(
    operator_namespace="diloco-system",
    trainer_image="registry.example/diloco:1",
    home_id=HOME_ID,
)
FAR, FARTHER = "far-kubeconfig", "farther-kubeconfig"


def clusters_job(*, tokens: int = 100_000_000, farther: str = FARTHER, **spec: Any) -> Object:
    """Four learners: two at home, and one in each of two other regions. ``farther``: the second one's Secret."""

    def region(name: str, learners: int, secret: str = "") -> Object:
        where = {"cluster": {"kubeconfigSecret": {"name": secret}}} if secret else {}
        return {"name": name, "pools": [{"name": "new", "learners": learners}], **where}

    regions = [region("near", 2), region("far", 1, FAR), region("farther", 1, farther)]
    return job_object(
        tokens=tokens, regions=regions, syncer={"expose": {"type": "NodePort", "host": "192.0.2.1"}}, **spec
    )


@dataclass
class OtherCluster:
    """A namespace of another cluster."""

    name: str
    now: datetime
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    """By kind and name, whoever they belong to."""
    state: ClusterState = ClusterState.READY
    refuses: bool = False
    """It answers every write with a 403."""
    cut: bool = False
    """Its learners do not reach the syncer."""
    seen: dict[tuple[str, str], Object] = field(default_factory=dict)
    """As the operator last saw them."""
    seen_at: datetime | None = None
    unlisted: frozenset[str] = frozenset()
    same_as: str = ""
    settled: bool = True
    expiring: Expiring | None = None
    writes: int = 0

    def __post_init__(self) -> None:
        self.pods = Pods(self.now)
        self._serial = 0

    def look(self) -> ClusterSeen:
        """What the operator knows now."""
        if self.state.takes_writes:
            self.seen, self.seen_at = copied(self.objects), self.now
        message = "" if self.state == ClusterState.READY else "as the test wants it"
        return ClusterSeen(
            self.state,
            message,
            self.seen_at,
            "theirs",
            expiring=self.expiring,
            same_as=self.same_as,
            settled=self.settled,
            unlisted=self.unlisted,
        )

    def put(self, item: Object) -> None:
        """Store an object, with the fields that an API server adds."""
        key = (item["kind"], item["metadata"]["name"])
        live = self.objects.get(key)
        self._serial += 1
        uid = f"{self.name}-{self._serial}" if live is None else live["metadata"]["uid"]
        generation = 1 if live is None else live["metadata"]["generation"] + (live.get("spec") != item.get("spec"))
        metadata = {**item["metadata"], "uid": uid, "generation": generation}
        status = {} if live is None else {"status": live.get("status")}
        self.objects[key] = copied({**status, **item, "metadata": metadata})

    def delete(self, kind: str, name: str) -> None:
        """Delete an object, and the pods of a set with it."""
        gone = self.objects.pop((kind, name))
        if kind == "StatefulSet":
            for pod, item in self.pods.pods.items():
                if item["metadata"]["ownerReferences"][0]["uid"] == gone["metadata"]["uid"]:
                    self.pods.delete(pod)

    def tick(self, now: datetime) -> None:
        """Its own controllers go on, whether or not its API server answers the operator."""
        self.now = self.pods.now = now
        for again in (False, True):
            for item in self.objects.values():
                if item["kind"] == "StatefulSet":
                    self.pods.set_controller(item)
            if not again:
                self.pods.kubelet()

    def running(self, uid: str) -> frozenset[str]:
        """Uids of this job's pods that run and are not being ended."""
        return frozenset(
            pod["metadata"]["uid"]
            for pod in self.pods.pods.values()
            if is_ready(pod)
            and "deletionTimestamp" not in pod["metadata"]
            and pod["metadata"]["labels"].get(labels.JOB_UID) == uid
        )


@dataclass
class ClustersWorld(World):
    """One job, home, and the clusters that it names."""

    job: Object = field(default_factory=clusters_job)
    options: OperatorOptions = OPTIONS
    gone: bool = False
    """The job was deleted and has no finalizer any more."""
    left_behind: dict[str, int] = field(default_factory=dict)
    other_jobs: frozenset[str] = frozenset()
    """Uids of more jobs at home."""

    def __post_init__(self) -> None:
        super().__post_init__()
        named = [(region.get("cluster") or {}).get("kubeconfigSecret", {}) for region in self.job["spec"]["regions"]]
        self.others = {one["name"]: OtherCluster(one["name"], self.now) for one in named if one}

    @property
    def uid(self) -> str:
        return str(self.job["metadata"]["uid"])

    def new_operator(self) -> None:
        """A new process: what the last one saw in clusters that are away is not known to it."""
        for other in self.others.values():
            other.seen, other.seen_at = {}, None

    def delete_job(self) -> None:
        """Delete the job as a user. Without a finalizer it is gone at once."""
        self.job["metadata"].setdefault("deletionTimestamp", stamp(self.now))
        if FINALIZER not in self.job["metadata"].get("finalizers", []):
            self._job_goes()

    def region(self, name: str) -> Object:
        """A region in the job's status."""
        return next(one for one in self.status["regions"] if one["name"] == name)

    def sweep(self) -> None:
        """What the operator does now and then in each cluster that answers."""
        uids = {*self.other_jobs, *(() if self.gone else (self.uid,))}
        for other in self.others.values():
            if other.state != ClusterState.READY or other.refuses:
                continue
            suspected = suspects(other.objects.values(), HOME_ID, uids, ())
            answers = {SweptJob("team", self.name): None if self.gone else self.uid}
            for one in orphans(suspected, answers):
                live = other.objects[one.kind, one.name]
                assert live["metadata"]["uid"] == one.uid
                assert labels.belongs(live["metadata"]["labels"], HOME_ID, self.uid), "it belongs to somebody else"
                assert self.gone, "the job is still there"
                other.delete(one.kind, one.name)

    # The operator's side

    def observed(self, *, looked: bool = False, asked: bool = False) -> Observed:
        home = super().observed(looked=looked, asked=asked)
        children, foreign, pods = dict(home.children), set(home.foreign), []
        clusters = {}
        for name, other in self.others.items():
            clusters[name] = other.look()
            for (kind, its_name), item in other.seen.items():
                if kind in other.unlisted:
                    continue
                key, own = ChildKey(kind, its_name, name), item["metadata"].get("labels") or {}
                if labels.belongs(own, HOME_ID, self.uid):
                    children[key] = copied(item)
                else:
                    foreign.add(key)
            if other.state.takes_writes:
                pods += [PodObserved(slim_pod(copied(pod)), cluster=name) for pod in other.pods.pods.values()]
        seen = home.looked and replace(home.looked, pods=(*home.looked.pods, *pods))
        return replace(home, children=children, foreign=frozenset(foreign), looked=seen, clusters=clusters)

    def decide(self, *, looked: bool, asked: bool) -> Plan:
        observed, job = self.observed(looked=looked, asked=asked), copied(self.job)
        before = copy.deepcopy((job, observed))  # which keeps NaN equal to itself
        plan = reconcile(job, observed, self.now, self.options, RandomCertificateMaker())
        assert (job, observed) == before, "what was observed is not the operator's to change"
        return plan

    def reconcile(self, actions: int | None = None) -> Plan:
        if self.gone:
            return Plan(again_in_seconds=60.0)
        return super().reconcile(actions)

    def _actions(self, plan: Plan) -> Iterator[Any]:
        if plan.add_finalizer:
            yield lambda: self.job["metadata"].setdefault("finalizers", []).append(FINALIZER)
        yield from super()._actions(plan)
        if plan.remove_finalizer:
            yield lambda: self._finalized(plan)

    def _scale(self, scaling: Scaling) -> None:
        if not scaling.child.cluster:
            super()._scale(scaling)
            return
        live = self._written(scaling.child)
        if live is not None:
            assert scaling.replicas < live["spec"]["replicas"]
            live["spec"]["replicas"] = scaling.replicas
            live["metadata"]["generation"] += 1

    def _apply(self, one: Placed) -> None:
        if not one.cluster:
            super()._apply(one)
            return
        assert FINALIZER in self.job["metadata"].get("finalizers", []), "nothing would delete it with the job"
        key = ChildKey.of_placed(one)
        self._written(key)
        if not self.others[one.cluster].refuses:
            self.others[one.cluster].put(one.body)

    def _delete_pod(self, deletion: PodDeletion) -> None:
        cluster, name = deletion.child.cluster, deletion.child.name
        if not cluster:
            super()._delete_pod(deletion)
            return
        assert self.others[cluster].state.takes_writes, f"{cluster} does not answer"
        pods = self.others[cluster].pods.pods
        assert pods[name]["metadata"]["uid"] == deletion.uid
        assert pods[name]["metadata"]["labels"].get(labels.JOB_UID) == self.uid, "it is another job's"
        if not deletion.by_force:
            self.others[cluster].pods.delete(name)
            return
        assert "deletionTimestamp" in pods[name]["metadata"], "it is not to go"
        del pods[name]
        self.forced.append(deletion)

    def _delete(self, key: ChildKey) -> None:
        if not key.cluster:
            self.children.pop(key)
        elif self._written(key) is not None:
            self.others[key.cluster].delete(key.kind, key.name)

    def _written(self, key: ChildKey) -> Object | None:
        """The object before a write to it; None: there is none, or the write is refused."""
        other = self.others[key.cluster]
        assert other.state.takes_writes, f"{key}: its cluster does not answer"
        live = other.objects.get((key.kind, key.name))
        if live is not None:
            assert labels.belongs(live["metadata"].get("labels"), HOME_ID, self.uid), f"{key} belongs to somebody else"
        other.writes += 1
        return None if other.refuses else live

    def _finalized(self, plan: Plan) -> None:
        self.job["metadata"]["finalizers"].remove(FINALIZER)
        self.left_behind = dict(plan.left_behind)
        self.events += plan.events
        self._job_goes()

    def _job_goes(self) -> None:
        self.gone = True
        self.children.clear()
        for pod in self.pods.pods:
            self.pods.delete(pod)

    # The clusters' side

    def tick(self, seconds: float = TICK_SECONDS) -> None:
        super().tick(seconds)
        for other in self.others.values():
            other.tick(self.now)

    def running_abroad(self) -> dict[str, frozenset[str]]:
        """Uids of the pods that run in the other clusters."""
        return {name: other.running(self.uid) for name, other in self.others.items()}

    def _connected(self) -> list[str]:
        found = super()._connected()
        for other in self.others.values():
            for name, pod in other.pods.pods.items():
                if not other.cut and pod["metadata"]["uid"] in other.running(self.uid):
                    its = pod["metadata"]["labels"]
                    found.append(f"{its[labels.REGION]}/{its[labels.POOL]}/{name.rpartition('-')[2]}")
        return found
