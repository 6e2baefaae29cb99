"""What a cluster's own controllers make of StatefulSets, Deployments and claims: pods that start, fail and end.

Time is virtual. Must not know the operator.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

Object = dict[str, Any]

STARTING_SECONDS = 5.0
ENDING_SECONDS = 20.0


def stamp(time: datetime) -> str:
    """As Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Pods:
    """The pods of a namespace, and what keeps them from running."""

    now: datetime
    pods: dict[str, Object] = field(default_factory=dict)
    events: dict[str, list[Object]] = field(default_factory=dict)
    """By the uid of what they are about."""
    troubles: dict[str, Object] = field(default_factory=dict)
    """Status of pods whose name begins so, instead of a running one; ``events`` in it are events."""
    forbidden: set[str] = field(default_factory=set)
    """Sets that may not create pods."""
    unprovisioned: str = ""
    """Why claims are not bound."""
    stuck: set[str] = field(default_factory=set)
    """Pods that do not end: their node is lost."""
    _serial: int = 0

    def set_controller(self, item: Object) -> None:
        """One round of a StatefulSet's or Deployment's controller."""
        name, wanted = item["metadata"]["name"], item["spec"]["replicas"]
        suffix = "-{}" if item["kind"] == "StatefulSet" else "-5d4f8-{}"
        names = [name + suffix.format(index) for index in range(wanted)]
        for pod in self._of(item):
            if pod["metadata"]["name"] not in names:
                self.delete(pod["metadata"]["name"])
        for pod_name in names:
            if pod_name not in self.pods and name not in self.forbidden:
                self._create(pod_name, item)
        if name in self.forbidden:
            text = (
                f'create Pod {name}-0 in StatefulSet {name} failed error: pods "{name}-0" is forbidden: exceeded quota'
            )
            self.events[item["metadata"]["uid"]] = [self._event("FailedCreate", text)]
        own = self._of(item)
        ready = sum(is_ready(pod) for pod in own)
        # A Deployment does not count pods that are on their way out; a StatefulSet does.
        kept = [pod for pod in own if item["kind"] == "StatefulSet" or "deletionTimestamp" not in pod["metadata"]]
        item["status"] = {
            "observedGeneration": item["metadata"]["generation"],
            "replicas": len(kept),
            "readyReplicas": ready,
        }
        if item["kind"] == "Deployment":
            available = {"type": "Available", "status": "True" if ready else "False"}
            item["status"]["conditions"] = [available | {"lastTransitionTime": stamp(self.now - timedelta(hours=1))}]

    def claim_controller(self, claim: Object) -> None:
        """Bind it, or say why not."""
        uid = claim["metadata"]["uid"]
        if self.unprovisioned and claim.get("status", {}).get("phase") != "Bound":
            claim["status"] = {"phase": "Pending"}
            self.events[uid] = [self._event("ProvisioningFailed", self.unprovisioned)]
        else:
            claim["status"] = {"phase": "Bound"}

    def delete(self, name: str) -> None:
        """Ask a pod to end."""
        metadata = self.pods[name]["metadata"]
        metadata.setdefault("deletionTimestamp", stamp(self.now + timedelta(seconds=ENDING_SECONDS)))

    def kubelet(self) -> None:
        """Every pod moves on."""
        for name, pod in list(self.pods.items()):
            due = pod["metadata"].get("deletionTimestamp")
            if due is not None:
                if name in self.stuck:
                    # The node lifecycle controller's doing.
                    pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}
                elif stamp(self.now) >= due:
                    del self.pods[name]
                continue
            trouble = next((value for prefix, value in self.troubles.items() if name.startswith(prefix)), None)
            uid = pod["metadata"]["uid"]
            self.events.pop(uid, None)
            if trouble is not None:
                pod["status"] = {key: value for key, value in trouble.items() if key != "events"}
                self.events[uid] = [self._event(*event) for event in trouble.get("events", ())]
            elif not is_ready(pod) and stamp(self.now) >= pod["metadata"]["annotations"]["ready-at"]:
                pod["status"] = running(self.now)

    def _of(self, item: Object) -> list[Object]:
        uid = item["metadata"]["uid"]
        return [pod for pod in self.pods.values() if pod["metadata"]["ownerReferences"][0]["uid"] == uid]

    def _create(self, name: str, owner: Object) -> None:
        self._serial += 1
        self.pods[name] = {
            "metadata": {
                "name": name,
                "uid": f"pod-{self._serial}",
                "labels": owner["spec"]["template"]["metadata"]["labels"],
                "ownerReferences": [{"uid": owner["metadata"]["uid"], "controller": True}],
                "annotations": {"ready-at": stamp(self.now + timedelta(seconds=STARTING_SECONDS))},
            },
            "spec": {"nodeName": "node-1"},
            "status": {"phase": "Pending"},
        }

    def _event(self, reason: str, message: str) -> Object:
        return {"type": "Warning", "reason": reason, "message": message, "lastTimestamp": stamp(self.now)}


def is_ready(pod: Object) -> bool:
    """Ready and not on its way out."""
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
