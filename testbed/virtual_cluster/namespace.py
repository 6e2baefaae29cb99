"""A namespace in memory and in virtual time: objects as an API server keeps them, and the pods of its sets.

Uid, generation and version of an object are the server's, and a field that is no longer applied disappears. It does not
depend on who writes.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from diloco_operator import labels
from diloco_operator.cluster_state import ClusterSeen, ClusterState, Expiring
from testbed.virtual_cluster.world_pods import Object, Pods, copied, is_ready, learner_of, pool_of, works

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ADDRESS = "10.96.0.1"
"""The address that every Service gets."""
Key = tuple[str, str]
"""Kind and name."""


@dataclass
class Namespace:
    """A namespace, of whichever cluster."""

    name: str = ""
    """In uids, which differ from cluster to cluster."""
    now: datetime = START
    objects: dict[Key, Object] = field(default_factory=dict)
    """Whoever they belong to."""
    applied: dict[Key, Object] = field(default_factory=dict)
    """What was applied last."""
    version: int = 0
    """Of the newest write."""

    def __post_init__(self) -> None:
        self.pods = Pods(self.now)

    def of_kind(self, kind: str) -> dict[str, Object]:
        return {name: item for (its, name), item in self.objects.items() if its == kind}

    def put(self, item: Object) -> Object:
        """Store an object, with the fields that an API server adds; returns it."""
        key = (item["kind"], item["metadata"]["name"])
        self.version += 1
        new = {"metadata": {"uid": f"{self.name}{item['kind']}-{self.version}", "generation": 0}}
        live = self.objects.get(key, new)
        status = {"status": live["status"]} if "status" in live else {}
        if item["kind"] == "Service":
            item = {**item, "spec": {"clusterIP": ADDRESS, **item.get("spec", {})}}
        metadata = {
            "uid": live["metadata"]["uid"],
            **item["metadata"],
            "resourceVersion": str(self.version),
            "generation": int(live["metadata"].get("generation") or 0) + (item.get("spec") != live.get("spec")),
        }
        self.objects[key] = copied({**status, **item, "metadata": metadata})
        return copied(self.objects[key])

    def apply(self, body: Object) -> Object:
        """Apply an object, always as the same owner; returns it."""
        key = (body["kind"], body["metadata"]["name"])
        item = _merged(_without(self.objects.get(key, {}), self.applied.get(key, {}), body), body)
        self.applied[key] = copied(body)
        return self.put(item)

    def delete(self, kind: str, name: str) -> None:
        """Delete an object, and the pods of a set with it."""
        gone = self.objects.pop((kind, name))
        self.applied.pop((kind, name), None)
        if kind == "StatefulSet":
            for pod, item in list(self.pods.pods.items()):
                if item["metadata"]["ownerReferences"][0]["uid"] == gone["metadata"]["uid"]:
                    self.pods.delete(pod)

    def tick(self, now: datetime) -> None:
        """The controllers of its cluster go on."""
        self.now = now
        before = {key: copied(item.get("status")) for key, item in self.objects.items()}
        self.pods.advance(now, self.objects.values())
        for key, item in self.objects.items():
            if item.get("status") != before[key]:
                self.version += 1
                item["metadata"]["resourceVersion"] = str(self.version)

    def pods_of(self, component: str, job: str) -> list[str]:
        wanted = {labels.COMPONENT: component, labels.JOB: job}
        pods = self.pods.pods.items()
        return [name for name, pod in pods if wanted.items() <= pod["metadata"]["labels"].items()]

    def ready_syncer(self, job: str) -> str:
        """The uid of the pod in which a job's syncer runs; empty: in none."""
        pods = [self.pods.pods[name] for name in self.pods_of("syncer", job)]
        return next((str(pod["metadata"]["uid"]) for pod in pods if is_ready(pod)), "")

    def working_learners(self, job: str, *more: str) -> list[str]:
        """The learners all of whose pods run and are to stay; and those in the pods ``more``."""
        pods = {name: self.pods.pods[name] for name in self.pods_of("learner", job)}
        nodes = {name: self.pods.nodes_per_learner.get(pool_of(pod), 1) for name, pod in pods.items()}
        working = [
            (learner_of(pod, nodes[name]), nodes[name]) for name, pod in pods.items() if name in more or works(pod)
        ]
        return [learner for learner, its in dict(working).items() if working.count((learner, its)) == its]


@dataclass
class Cluster(Namespace):
    """A namespace and how its API server answers the operator."""

    state: ClusterState = ClusterState.READY
    refuses: bool = False
    """It answers every write with a 403."""
    cut: bool = False
    """Its learners do not reach the syncer."""
    seen: dict[Key, Object] = field(default_factory=dict)
    """As the operator last saw them."""
    seen_at: datetime | None = None
    unlisted: frozenset[str] = frozenset()
    same_as: str = ""
    settled: bool = True
    deleted: bool = False
    """The Secret with its kubeconfig is being deleted."""
    expiring: Expiring | None = None
    place: str = ""
    """Server and namespace; empty: by its name."""
    writes: int = 0

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
            self.place or f"https://{self.name}.example:6443/theirs",
            expiring=self.expiring,
            same_as=self.same_as,
            deleted=self.deleted,
            settled=self.settled,
            unlisted=self.unlisted,
        )

    def running(self, uid: str) -> frozenset[str]:
        """Uids of a job's pods that run and are not being ended."""
        return frozenset(
            pod["metadata"]["uid"]
            for pod in self.pods.pods.values()
            if works(pod) and pod["metadata"]["labels"].get(labels.JOB_UID) == uid
        )


def _merged(live: Any, desired: Any) -> Any:
    """What an API server makes of applied fields."""
    if isinstance(live, dict) and isinstance(desired, dict):
        return {**live, **{key: _merged(live.get(key), value) for key, value in desired.items()}}
    # The ports of a Service keep the numbers that the API server has chosen.
    if isinstance(live, list) and any(isinstance(one, dict) and "nodePort" in one for one in live):
        ports = {one["port"]: one for one in live}
        return [_merged(ports.get(one["port"]), one) for one in desired]
    return copied(desired)


def _without(live: Any, applied: Any, desired: Any) -> Any:
    """``live`` without the fields that were applied before and no longer are."""
    if not (isinstance(live, dict) and isinstance(applied, dict) and isinstance(desired, dict)):
        return live
    return {
        key: _without(value, applied.get(key), desired.get(key))
        for key, value in live.items()
        if key in desired or key not in applied
    }
