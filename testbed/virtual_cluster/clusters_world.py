"""One job over several clusters in virtual time: others may be away, refuse writes, and hold objects of strangers.

It checks every write: nothing is sent to a cluster that does not answer, nothing that belongs to somebody else is
written or deleted, and no pod that should run is ended.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from diloco_operator import labels
from diloco_operator.cluster_state import ClusterState
from diloco_operator.decide.clusters import FINALIZER
from diloco_operator.decide.plan import Plan
from diloco_operator.decide.sweep import orphans
from diloco_operator.options import OperatorOptions
from testbed.virtual_cluster import operator_world
from testbed.virtual_cluster.namespace import Cluster
from testbed.virtual_cluster.operator_world import TICK_SECONDS, World, job_object
from testbed.virtual_cluster.world_pods import Object, learner_of, stamp

HOME_ID = "home-1"
OPTIONS = replace(operator_world.OPTIONS, home_id=HOME_ID)
FAR, FARTHER = "far-kubeconfig", "farther-kubeconfig"


def clusters_job(*, tokens: int = 100_000_000, farther: str = FARTHER, **spec: Any) -> Object:
    """Four learners: two at home, and one in each of two other regions. ``farther``: the second one's Secret."""

    def region(name: str, learners: int, secret: str = "") -> Object:
        where = {"cluster": {"kubeconfigSecretRef": {"name": secret}}} if secret else {}
        return {"name": name, "pools": [{"name": "new", "learners": learners}], **where}

    regions = [region("near", 2), region("far", 1, FAR), region("farther", 1, farther)]
    return job_object(
        tokens=tokens, regions=regions, syncer={"expose": {"type": "NodePort", "host": "192.0.2.1"}}, **spec
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
        named = [(region.get("cluster") or {}).get("kubeconfigSecretRef", {}) for region in self.job["spec"]["regions"]]
        self.others = {one["name"]: Cluster(one["name"], self.now) for one in named if one}

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
            objects = [(kind, item) for (kind, _), item in other.objects.items()]
            for one in orphans(objects, HOME_ID, uids, ()):
                live = other.objects[one.kind, one.name]
                assert live["metadata"]["uid"] == one.uid
                assert labels.belongs(live["metadata"]["labels"], self.uid), "it belongs to somebody else"
                assert self.gone, "the job is still there"
                other.delete(one.kind, one.name)

    # The operator's side

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

    def _finalized(self, plan: Plan) -> None:
        self.job["metadata"]["finalizers"].remove(FINALIZER)
        self.left_behind = dict(plan.left_behind)
        self.events += plan.events
        self._job_goes()

    def _job_goes(self) -> None:
        self.gone = True
        self.home.objects.clear()
        for pod in list(self.pods.pods):
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
            running = frozenset() if other.cut else other.running(self.uid)
            found += [learner_of(pod) for pod in other.pods.pods.values() if pod["metadata"]["uid"] in running]
        return found
