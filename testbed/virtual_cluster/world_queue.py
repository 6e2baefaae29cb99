"""Kueue as a job's owner sees it, in virtual time: one ClusterQueue with quota for pods, which admits and preempts.

It counts pods of whatever size. What it writes is what Kueue writes (sigs.k8s.io/kueue v0.17.0, pkg/workload): who owns
a Workload that is evicted gives its quota back, not this. It depends on nothing of the operator.
"""

from dataclasses import dataclass, field
from typing import Any

from testbed.virtual_cluster.namespace import Namespace
from testbed.virtual_cluster.world_pods import Object, stamp

FLAVOR = "spot"
NODES = {"example.com/pool": "spot"}
TOLERATION = {"key": "example.com/spot", "operator": "Exists", "effect": "NoSchedule"}
FULL = "couldn't assign flavors to pod set: insufficient unused quota for pods in flavor spot"


@dataclass
class WorldQueue:
    """The queue of a namespace."""

    home: Namespace
    quota: int
    """Pods that may be admitted."""
    priorities: dict[str, int] = field(default_factory=dict)
    """WorkloadPriorityClasses by name."""

    def __post_init__(self) -> None:
        spec = {"nodeLabels": NODES, "tolerations": [TOLERATION]}
        self.home.put({"kind": "ResourceFlavor", "metadata": {"name": FLAVOR}, "spec": spec})
        for name, value in self.priorities.items():
            self.home.put({"kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value})

    @property
    def workloads(self) -> dict[str, Object]:
        return self.home.of_kind("Workload")

    def conditions(self, name: str) -> dict[str, str]:
        """The statuses of a Workload's conditions, by type."""
        return {type_: one["status"] for type_, one in _conditions(self.workloads[name]).items()}

    @property
    def used(self) -> int:
        """Pods that have quota."""
        return sum(_pods(one) for one in self.workloads.values() if _is(one, "QuotaReserved"))

    @property
    def admitted(self) -> set[str]:
        """Names of the Workloads whose pods may run."""
        return {name for name, one in self.workloads.items() if _is(one, "Admitted") and not _is(one, "Evicted")}

    def schedule(self) -> None:
        """One round: the highest priority first, then the oldest; preempt for it if that is enough."""
        for one in sorted(self.workloads.values(), key=_order):
            if _is(one, "QuotaReserved") or _conditions(one).get("Requeued", {}).get("status") == "False":
                continue
            if self.used + _pods(one) <= self.quota:
                self._admit(one)
                continue
            self._write(one, QuotaReserved=("False", "Pending", FULL))
            lower = [other for other in self.workloads.values() if _is(other, "QuotaReserved")]
            lower = sorted((other for other in lower if _priority(other) < _priority(one)), key=_order, reverse=True)
            lacking = self.used + _pods(one) - self.quota
            for other in lower:
                if lacking <= 0:
                    break
                lacking -= _pods(other)
                self.evict(other["metadata"]["name"])

    def evict(self, name: str, reason: str = "Preempted") -> None:
        """Take a Workload's quota back, as a preemption does."""
        if not _is(self.workloads[name], "Evicted"):
            self._write(self.workloads[name], Evicted=("True", reason, f"{reason} to accommodate a workload"))

    def _admit(self, one: Object) -> None:
        assignments = [
            {"name": sets["name"], "count": sets["count"], "flavors": {"cpu": FLAVOR, "memory": FLAVOR}}
            for sets in one["spec"]["podSets"]
        ]
        more = {"Evicted": ("False", "QuotaReserved", "Previously: evicted")} if _is(one, "Evicted") else {}
        admission = {"clusterQueue": "main", "podSetAssignments": assignments}
        quota = ("True", "QuotaReserved", "Quota reserved in ClusterQueue main")
        is_admitted = ("True", "Admitted", "The workload is admitted")
        self._write(one, admission=admission, QuotaReserved=quota, Admitted=is_admitted, **more)

    def _write(self, one: Object, admission: Any = None, **conditions: tuple[str, str, str]) -> None:
        found = _conditions(one)
        for type_, (status, reason, message) in conditions.items():
            before = found.get(type_, {})
            since = before["lastTransitionTime"] if before.get("status") == status else stamp(self.home.now)
            text = {"reason": reason, "message": message, "lastTransitionTime": since}
            found[type_] = {"type": type_, "status": status, **text}
        after = {**one.get("status", {}), "conditions": list(found.values())}
        if admission is not None:
            after["admission"] = admission
        if one.get("status") != after:
            self.home.put({**one, "status": after})


def _conditions(one: Object) -> dict[str, Object]:
    return {found["type"]: found for found in one.get("status", {}).get("conditions", ())}


def _is(one: Object, type_: str) -> bool:
    return bool(_conditions(one).get(type_, {}).get("status") == "True")


def _pods(one: Object) -> int:
    return sum(sets["count"] for sets in one["spec"]["podSets"])


def _priority(one: Object) -> int:
    return int(one["spec"].get("priority") or 0)


def _order(one: Object) -> tuple[int, int]:
    # Made one after another: the number in its uid.
    return -_priority(one), int(one["metadata"]["uid"].rpartition("-")[2])
