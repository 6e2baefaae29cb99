"""One Workload of Kueue: what it says, and the statuses that its owner has to write. Pure.

Kueue sets ``Evicted`` and waits. Who owns the Workload ends the pods, then releases the quota: that part of the status
is not Kueue's to write. What is written here is what Kueue's own job controllers write (sigs.k8s.io/kueue v0.17.0,
pkg/controller/jobframework/reconciler.go and pkg/workload/workload.go).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from diloco_operator.decide.observed import Flavor, Object
from diloco_operator.decide.status.text import parsed_time
from diloco_operator.objects import items_of, mapping, uid_of

DIGEST: Final = "diloco.dev/workload"
"""Annotation of a Workload: digest of its spec."""
POD_SETS: Final = "diloco.dev/pod-sets"
"""The same: digest of its pod sets alone."""
_REQUEUED_AT_ONCE: Final = frozenset({"Preempted", "NodeFailures"})
"""Reasons of an eviction after which Kueue may admit the Workload again at once; after others it says when."""
_NOT_SEEN: Final = "Kueue has not looked at it yet"


@dataclass(frozen=True, slots=True)
class Placing:
    """What Kueue wants of pods that it admits: where they run, and marks of its admission checks."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Object, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    def joined(self, other: "Placing") -> "Placing":
        """Both."""
        tolerations = (*self.tolerations, *(one for one in other.tolerations if one not in self.tolerations))
        return Placing(
            {**self.node_selector, **other.node_selector},
            tolerations,
            {**self.labels, **other.labels},
            {**self.annotations, **other.annotations},
        )


@dataclass(frozen=True, slots=True)
class Workload:
    """A Workload as last seen."""

    live: Object

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.live["metadata"]["name"])

    @property
    def digest(self) -> str:
        """Of the spec that it was made from."""
        return self._annotation(DIGEST)

    @property
    def pod_sets_digest(self) -> str:
        """Of the pod sets that it was made from."""
        return self._annotation(POD_SETS)

    @property
    def reserved(self) -> bool:
        """Whether quota is taken for it. Then its pod sets cannot change."""
        return self._is("QuotaReserved")

    def reserved_for(self, seconds: float, now: datetime) -> bool:
        """Whether its quota was taken so long ago."""
        since = parsed_time(str(self._condition("QuotaReserved").get("lastTransitionTime")))
        return self.reserved and since is not None and (now - since).total_seconds() >= seconds

    @property
    def evicted(self) -> bool:
        """Whether its pods have to end."""
        return self._is("Evicted")

    @property
    def admitted(self) -> bool:
        """Whether its pods may run."""
        return self._is("Admitted") and not self.evicted

    @property
    def told_ready(self) -> bool:
        """Whether Kueue was told that all of its pods are ready."""
        return self._is("PodsReady")

    @property
    def message(self) -> str:
        """What Kueue says of why its pods may not run."""
        for type_, status in (("Evicted", "True"), ("QuotaReserved", "False"), ("Admitted", "False")):
            found = self._condition(type_)
            if found.get("status") == status and found.get("message"):
                return str(found["message"])
        return _NOT_SEEN

    @property
    def pods(self) -> dict[str, int]:
        """Pods of each of its pod sets, by name."""
        return {str(one["name"]): int(one.get("count") or 0) for one in self.live["spec"]["podSets"]}

    @property
    def flavors(self) -> frozenset[str]:
        """The flavors that it was given, by name."""
        return frozenset(flavor for one in self._assignments for flavor in mapping(one.get("flavors")).values())

    def placing(self, pod_set: str, flavors: Mapping[str, Flavor]) -> Placing | None:
        """What its admission asks of a pod set's pods; None: a flavor of theirs could not be read."""
        found = Placing()
        for one in self._assignments:
            names = mapping(one.get("flavors")).values() if one.get("name") == pod_set else ()
            if not all(name in flavors for name in names):
                return None
            for name in sorted(set(names)):
                found = found.joined(Placing(flavors[name].node_labels, flavors[name].tolerations))
        for check in items_of(self._status.get("admissionChecks")):
            for update in items_of(check.get("podSetUpdates")):
                if update.get("name") == pod_set:
                    found = found.joined(_of_check(update))
        return found

    def released(self, now: datetime) -> Object:
        """A merge patch that gives back its quota, after its pods have ended because it was evicted."""
        evicted = self._condition("Evicted")
        reason, text = str(evicted.get("reason")), str(evicted.get("message") or "")
        again = "True" if reason in _REQUEUED_AT_ONCE else "False"
        changed = [
            ("QuotaReserved", "False", "Pending", text),
            ("Admitted", "False", "NoReservation", "The workload has no reservation"),
            ("Requeued", again, reason, text),
        ]
        if self.told_ready:
            changed.append(("PodsReady", "False", "WaitForStart", "Not all pods are ready or succeeded"))
        return self._patch(changed, now, admission=None)

    def ready(self, now: datetime) -> Object:
        """A merge patch that tells Kueue that all of its pods are ready (``waitForPodsReady``)."""
        return self._patch([("PodsReady", "True", "Started", "All pods reached readiness")], now)

    def _patch(self, changed: Iterable[tuple[str, str, str, str]], now: datetime, **more: Any) -> Object:
        made = {type_: self._changed(type_, status, reason, text, now) for type_, status, reason, text in changed}
        others = [one for one in items_of(self._status.get("conditions")) if one.get("type") not in made]
        metadata = self.live["metadata"]
        # Of this version: a list is replaced as a whole, and what Kueue has written meanwhile must not be lost.
        which = {key: metadata[key] for key in ("namespace", "name", "resourceVersion")} | {"uid": uid_of(self.live)}
        return {"metadata": which, "status": {**more, "conditions": [*others, *made.values()]}}

    def _changed(self, type_: str, status: str, reason: str, text: str, now: datetime) -> Object:
        before = self._condition(type_)
        since = f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        return {
            "type": type_,
            "status": status,
            "reason": reason,
            "message": text,
            "lastTransitionTime": before["lastTransitionTime"] if before.get("status") == status else since,
            "observedGeneration": int(self.live["metadata"].get("generation") or 0),
        }

    @property
    def _status(self) -> Mapping[str, Any]:
        return mapping(self.live.get("status"))

    @property
    def _assignments(self) -> list[Any]:
        return items_of(mapping(self._status.get("admission")).get("podSetAssignments"))

    def _annotation(self, name: str) -> str:
        return str((self.live["metadata"].get("annotations") or {}).get(name, ""))

    def _condition(self, type_: str) -> Mapping[str, Any]:
        return next((one for one in items_of(self._status.get("conditions")) if one.get("type") == type_), {})

    def _is(self, type_: str) -> bool:
        return self._condition(type_).get("status") == "True"


def _of_check(update: Mapping[str, Any]) -> Placing:
    return Placing(
        mapping(update.get("nodeSelector")),
        tuple(items_of(update.get("tolerations"))),
        mapping(update.get("labels")),
        mapping(update.get("annotations")),
    )
