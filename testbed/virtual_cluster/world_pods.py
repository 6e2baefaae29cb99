"""A cluster's own controllers of StatefulSets, Deployments and claims: pods that start, fail and end.

Time is virtual. It does not depend on the operator.
"""

import hashlib
import json
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from diloco_operator import labels

Object = dict[str, Any]
T = TypeVar("T")

STARTING_SECONDS = 5.0
ENDING_SECONDS = 20.0


SILENT = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
"""The conditions of a pod whose node does not respond."""
GATED: Object = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}],
}
"""The status of a pod that the scheduler may not place yet."""


def copied(value: T) -> T:
    """A deep copy; ``copy.deepcopy`` would take most of the tests' time."""
    copy: T = pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    return copy


def stamp(time: datetime) -> str:
    """As Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Pods:
    """The pods of a namespace, and the problems that keep them from running."""

    now: datetime
    pods: dict[str, Object] = field(default_factory=dict)
    events: dict[str, list[Object]] = field(default_factory=dict)
    """Events by the uid of the object that they are about."""
    troubles: dict[str, Object] = field(default_factory=dict)
    """Status of pods whose name begins so, instead of a running one; ``events`` in it are events."""
    forbidden: set[str] = field(default_factory=set)
    """Sets that may not create pods."""
    unprovisioned: str = ""
    """Why claims are not bound."""
    nodes: tuple[str, ...] = ("node-1",)
    """The scheduler takes the one with the fewest pods, but only of those that a pod avoids if there is no other."""
    room: int | None = None
    """Learners' pods that find a node; None: all."""
    nodes_per_learner: dict[str, int] = field(default_factory=dict)
    """Pods of a learner, of the pools where it has several."""
    broken: set[str] = field(default_factory=set)
    """Nodes on which every container crashes, again and again."""
    claims: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Access modes of the claims that sets' controllers have made for pods."""
    stuck: set[str] = field(default_factory=set)
    """Pods that do not end: their node is lost."""
    _serial: int = 0

    def advance(self, now: datetime, items: Iterable[Object]) -> None:
        """Time passes for these objects and their pods."""
        self.now = now
        for again in (False, True):
            for item in items:
                if item["kind"] in ("StatefulSet", "Deployment"):
                    self.set_controller(item)
                elif item["kind"] == "PersistentVolumeClaim":
                    self._claim_controller(item)
            if not again:
                self._kubelet()

    def set_controller(self, item: Object) -> None:
        """One round of a StatefulSet's or Deployment's controller."""
        name = item["metadata"]["name"]
        if item["kind"] == "StatefulSet":
            self._stateful_set(item)
        else:
            self._deployment(item)
        if name in self.forbidden:
            text = (
                f'create Pod {name}-0 in StatefulSet {name} failed error: pods "{name}-0" is forbidden: exceeded quota'
            )
            self.events[item["metadata"]["uid"]] = [self._event("FailedCreate", text)]
        own, revision = self._of(item), _revision_of(item)
        # A Deployment does not count pods that are on their way out; a StatefulSet does.
        kept = [pod for pod in own if item["kind"] == "StatefulSet" or "deletionTimestamp" not in pod["metadata"]]
        ready = sum(is_ready(pod) for pod in kept)
        updated = sum(_revision(pod) == revision and "deletionTimestamp" not in pod["metadata"] for pod in kept)
        # With OnDelete a StatefulSet's status keeps the first revision.
        complete = item["kind"] == "Deployment" and updated == ready == item["spec"]["replicas"]
        current = revision if complete else item.get("status", {}).get("currentRevision", revision)
        # The controllers leave out a count of 0.
        counts = {"readyReplicas": ready, "updatedReplicas": updated}
        item["status"] = {
            "observedGeneration": item["metadata"]["generation"],
            "replicas": len(kept),
            **{field: count for field, count in counts.items() if count},
            "currentRevision": current,
            "updateRevision": revision,
        }
        if item["kind"] == "Deployment":
            available = {"type": "Available", "status": "True" if ready else "False"}
            reason = "NewReplicaSetAvailable" if updated == 0 or current == revision else "ReplicaSetUpdated"
            item["status"]["conditions"] = [
                available | {"lastTransitionTime": stamp(self.now - timedelta(hours=1))},
                {"type": "Progressing", "status": "True", "reason": reason},
            ]

    def _claim_controller(self, claim: Object) -> None:
        """Bind a claim, or report why that is not possible."""
        uid = claim["metadata"]["uid"]
        if self.unprovisioned and claim.get("status", {}).get("phase") != "Bound":
            claim["status"] = {"phase": "Pending"}
            self.events[uid] = [self._event("ProvisioningFailed", self.unprovisioned)]
        else:
            claim["status"] = {"phase": "Bound"}

    def delete(self, name: str) -> None:
        """Ask a pod to end. One that has no node is gone at once."""
        if "nodeName" not in self.pods[name]["spec"]:
            del self.pods[name]
            return
        metadata = self.pods[name]["metadata"]
        metadata.setdefault("deletionTimestamp", stamp(self.now + timedelta(seconds=ENDING_SECONDS)))

    def _kubelet(self) -> None:
        """Advance every pod to its next state."""
        for name, pod in list(self.pods.items()):
            if pod["spec"].get("schedulingGates"):
                pod["status"] = GATED
                continue
            trouble = self._trouble_of(name)
            if "nodeName" not in pod["spec"] and trouble is None and not self._schedules(pod):
                continue
            due = pod["metadata"].get("deletionTimestamp")
            if due is not None:
                self._leaves(name, due)
                continue
            uid = pod["metadata"]["uid"]
            self.events.pop(uid, None)
            if trouble is None and pod["spec"].get("nodeName") in self.broken:
                trouble = crashing(self.now)
            if trouble is not None:
                pod["status"] = {key: value for key, value in trouble.items() if key != "events"}
                for container in pod["status"].get("containerStatuses", ())[:1]:
                    container["name"] = pod["metadata"]["labels"].get(labels.COMPONENT)
                self.events[uid] = [self._event(*event) for event in trouble.get("events", ())]
            elif not is_ready(pod) and stamp(self.now) >= pod["metadata"]["annotations"]["ready-at"]:
                pod["status"] = running(self.now)

    def _leaves(self, name: str, due: str) -> None:
        if name in self.stuck:
            # The node lifecycle controller's doing.
            self.pods[name]["status"] = {"phase": "Running", "conditions": SILENT}
        elif stamp(self.now) >= due:
            del self.pods[name]

    def _trouble_of(self, name: str) -> Object | None:
        return next((value for prefix, value in self.troubles.items() if name.startswith(prefix)), None)

    def _of(self, item: Object) -> list[Object]:
        uid = item["metadata"]["uid"]
        return [pod for pod in self.pods.values() if pod["metadata"]["ownerReferences"][0]["uid"] == uid]

    def _stateful_set(self, item: Object) -> None:
        name = item["metadata"]["name"]
        names = [f"{name}-{index}" for index in range(item["spec"]["replicas"])]
        for pod in self._of(item):
            if pod["metadata"]["name"] not in names:
                self.delete(pod["metadata"]["name"])
        for pod_name in names:
            if pod_name not in self.pods and name not in self.forbidden:
                self._create(pod_name, item)

    def _deployment(self, item: Object) -> None:
        """With the strategy Recreate: a ReplicaSet counts active pods only, but a rollout waits for the last to end."""
        own, wanted, revision = self._of(item), item["spec"]["replicas"], _revision_of(item)
        active = [pod for pod in own if "deletionTimestamp" not in pod["metadata"]]
        old = [pod for pod in own if _revision(pod) != revision]
        for pod in {pod["metadata"]["name"] for pod in [*old, *active[wanted:]]}:
            self.delete(pod)
        name = item["metadata"]["name"]
        if not old and name not in self.forbidden:
            for _ in range(wanted - len(active)):
                self._create(f"{name}-{revision}-{self._serial + 1:05x}", item)

    def _create(self, name: str, owner: Object) -> None:
        self._serial += 1
        template, revision = owner["spec"]["template"], _revision_of(owner)
        gates = template["spec"].get("schedulingGates")
        volumes = []
        for claim in owner["spec"].get("volumeClaimTemplates", ()):
            its = f"{claim['metadata']['name']}-{name}"
            self.claims.setdefault(its, tuple(claim["spec"]["accessModes"]))
            volumes.append({"name": claim["metadata"]["name"], "persistentVolumeClaim": {"claimName": its}})
        self.pods[name] = {
            "metadata": {
                "name": name,
                "uid": f"pod-{self._serial}",
                "labels": {**template["metadata"]["labels"], "controller-revision-hash": revision},
                "ownerReferences": [{"uid": owner["metadata"]["uid"], "controller": True}],
                "annotations": {
                    "ready-at": stamp(self.now + timedelta(seconds=STARTING_SECONDS)),
                    "revision": revision,
                },
            },
            "spec": {
                **({"schedulingGates": gates} if gates else {}),
                **({"volumes": volumes} if volumes else {}),
                "tolerations": template["spec"].get("tolerations", []),
            },
            "status": {"phase": "Pending"},
        }
        if not gates:
            self._schedules(self.pods[name])

    def _schedules(self, pod: Object) -> bool:
        """Find a node for a pod, if there is room."""
        learners = [one for one in self.pods.values() if one["metadata"]["labels"][labels.COMPONENT] == labels.LEARNER]
        full = self.room is not None and sum("nodeName" in one["spec"] for one in learners) >= self.room
        if full and pod in learners:
            status = unschedulable("0/4 nodes are available: 4 Insufficient nvidia.com/gpu")
            scheduled = (pod["status"].get("conditions") or status["conditions"])[0]
            status["conditions"][0]["lastTransitionTime"] = scheduled.get("lastTransitionTime", stamp(self.now))
            pod["status"] = status
            return False
        pod["spec"]["nodeName"] = self._node()
        pod["status"] = {"phase": "Pending"}
        pod["metadata"]["annotations"]["ready-at"] = stamp(self.now + timedelta(seconds=STARTING_SECONDS))
        return True

    def _node(self) -> str:
        """The node with the fewest pods."""
        used = [pod["spec"].get("nodeName") for pod in self.pods.values()]
        return min(self.nodes, key=lambda node: (used.count(node), node))

    def claim_events(self) -> dict[str, list[Object]]:
        """The warnings about the claims that sets' controllers have made."""
        event = self._event("ProvisioningFailed", self.unprovisioned)
        return {name: [event] for name in self.claims} if self.unprovisioned else {}

    def _event(self, reason: str, message: str) -> Object:
        return {"type": "Warning", "reason": reason, "message": message, "lastTimestamp": stamp(self.now)}


def _revision_of(item: Object) -> str:
    """Of a set's template."""
    return hashlib.sha256(json.dumps(item["spec"]["template"], sort_keys=True).encode()).hexdigest()[:8]


def _revision(pod: Object) -> str:
    return str(pod["metadata"]["annotations"]["revision"])


def pool_of(pod: Object) -> str:
    """The pool of a learner's pod."""
    its = pod["metadata"]["labels"]
    return f"{its[labels.REGION]}/{its[labels.POOL]}"


def learner_of(pod: Object, nodes: int = 1) -> str:
    """The learner that a pod runs, ``region/pool/index``; ``nodes``: its pods."""
    index = pod["metadata"]["name"].rpartition("-")[2]
    return f"{pool_of(pod)}/{index if nodes == 1 else int(index) // nodes}"


def works(pod: Object) -> bool:
    """Whether a pod is ready and not being deleted."""
    return is_ready(pod) and "deletionTimestamp" not in pod["metadata"]


def is_ready(pod: Object) -> bool:
    """Whether a pod's condition says so."""
    conditions = pod["status"].get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def running(now: datetime) -> Object:
    """The status of a pod that is ready."""
    return {
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
        "containerStatuses": [{"ready": True, "restartCount": 0, "state": {"running": {"startedAt": stamp(now)}}}],
    }


def unschedulable(cause: str) -> Object:
    """The status of a pod for which there is no node."""
    message = f"{cause} preemption: {cause}"
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


def waiting(reason: str, message: str, *, events: tuple[tuple[str, str], ...] = (), **container: Any) -> Object:
    """The status of a pod whose container does not run."""
    state = {"ready": False, "restartCount": 0, "state": {"waiting": {"reason": reason, "message": message}}}
    return {"phase": "Pending", "containerStatuses": [state | container], "events": events}


def crashed(code: int, message: str, *, reason: str = "Error", restarts: int = 3) -> Object:
    """The status of a pod whose container keeps ending."""
    ended = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return waiting("CrashLoopBackOff", "back-off 40s restarting", lastState=ended, restartCount=restarts)


def crashing(now: datetime, *, ran_seconds: float = 20.0, code: int = 1, reason: str = "Error") -> Object:
    """The status of a pod whose container has just crashed for the third time."""
    times = {
        "startedAt": stamp(now - timedelta(seconds=ran_seconds + 5)),
        "finishedAt": stamp(now - timedelta(seconds=5)),
    }
    status = crashed(code, "CUDA error: uncorrectable ECC error", reason=reason)
    status["containerStatuses"][0]["lastState"]["terminated"] |= times
    return status
