"""Keeps the pods of learners that are out without a node, and replaces pods where they are held. Pure.

A held pod exists, because a StatefulSet has no gaps, but a scheduling gate keeps it from every node. Gates can only be
set when a pod is created. So the set's template has the gate until each pod to hold was created with it (`_gate`); then
the template is as before. Pods that were created meanwhile and should run are deleted, and created again without it.

The set's controller replaces no pod on its own account (OnDelete). What a changed template needs is done here: one
learner after the other, with all of its pods, as the end of one ends the others. It waits for none that is held,
nor for one without a node that an elastic pool can do without.

Where Kueue decides which learners run, every pod is created with the gate, which is removed from those that may run.

Nothing is remembered: what is held is in the manifest and the status, and how far it is shows in the pods.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from diloco_operator.decide.causes.pods import is_lost, is_on_silent_node, is_ready, is_unschedulable, node_of
from diloco_operator.decide.objects.workloads import (
    PoolWorkload,
    index_of,
    is_outdated,
    number_of,
    seen_by_controller,
    status_of,
)
from diloco_operator.decide.observed import ChildKey, Object, PodObserved
from diloco_operator.decide.plan import PodDeletion
from diloco_operator.decide.reasons import Reason
from diloco_operator.manifests.placement.holds import creates_gated, has_gate

MOST_WITH_THEM: Final = 16
"""Other pods of a set that may be created with the gate, because they are missing too (ours): they start a little
later."""
MOST_AT_ONCE: Final = 100
"""Pods of a set that one reconcile deletes (ours)."""
_SOON_SECONDS: Final = 2.0

SetUid = tuple[str, str]
"""A set: its cluster and its uid."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What is done about the held pods of one set."""

    gate: bool = False
    """Pods that it creates now are held back."""
    delete: tuple[PodDeletion, ...] = ()
    """Pods to be created anew."""
    held: int | None = 0
    """Learners whose pods are held back; None: not known."""
    again_in_seconds: float = float("inf")
    """When to decide again, at the latest."""
    old: int = 0
    """Learners that should run and have pods of another template than their set."""
    waits_for: frozenset[str] = frozenset()
    """Ids of the learners that keep those from being replaced."""
    release: tuple[int, ...] = ()
    """Indices of pods whose learners Kueue has admitted, and that still have the gate."""


class _Rollout(NamedTuple):
    due: Sequence[int] = ()
    """Pods to replace now, of one learner."""
    old: int = 0
    waits_for: frozenset[str] = frozenset()
    """Both as in `Holding`."""


class _Pods(NamedTuple):
    by_index: Mapping[int, Object]
    held: frozenset[int]
    """Indices whose pods should have no node."""
    total: int
    now: datetime

    @property
    def others(self) -> list[int]:
        """Indices whose pods should run."""
        return [index for index in range(self.total) if index not in self.held]


def holding(
    workload: PoolWorkload,
    pods: Mapping[int, Object] | None,
    now: datetime,
    lost_after_seconds: float,
    *,
    may_delete: bool,
) -> Holding:
    """Decide for one set that should have its pods.

    Args:
        workload: The pool, with the learners to hold.
        pods: The pods of its set, by index (`pods_by_set`); None: they were not listed.
        now: The time.
        lost_after_seconds: How long after its grace period a pod counts as lost.
        may_delete: The API server has not refused to delete pods there.
    """
    live = workload.live
    held = frozenset(index for index in workload.pods_of(workload.held) if index < workload.pods)
    if live is None:
        gate = workload.in_queue or (bool(held) and workload.pods - len(held) <= MOST_WITH_THEM)
        return Holding(gate, held=None if held else 0)
    # An empty list may be of a cluster that could not be asked.
    if pods is None or (not pods and number_of(status_of(live).get("replicas"))):
        return Holding(workload.in_queue or creates_gated(live), held=None if held else 0)
    # Without the right to delete pods, none can be held back.
    held = held if may_delete else frozenset()
    # A pod of another name is none of its set, whatever its owner reference says.
    pods = {index: pod for index, pod in pods.items() if pod["metadata"].get("name") == f"{workload.key.name}-{index}"}
    own = _Pods(pods, held, workload.pods, now)
    gate = workload.in_queue or _gate(own, lost_after_seconds)
    gated = {index for index, pod in pods.items() if has_gate(pod.get("spec"))}
    rollout = _rollout(workload, live, own, lost_after_seconds)
    delete = _deletions(workload, live, own, rollout.due, gate=gate) if may_delete else ()
    again = _SOON_SECONDS if delete or gate != creates_gated(live) else float("inf")
    whole = sum(workload.pods_of({one}) <= held & gated for one in workload.held)
    release = sorted(index for index in gated - held if index < workload.pods and not _leaving(pods[index]))
    release = release[:MOST_AT_ONCE] if workload.in_queue else []
    return Holding(gate, delete, whole, again, rollout.old, rollout.waits_for, tuple(release))


def _gate(own: _Pods, lost_after_seconds: float) -> bool:
    """Whether pods that are created now have to be held back."""
    # Of a lost pod it is not known when it goes. Until then, others of the set may have to be created.
    wanted = [index for index in own.held if not _done(own.by_index.get(index), own.now, lost_after_seconds)]
    missing = [index for index in own.others if index not in own.by_index or _leaving(own.by_index[index])]
    return bool(wanted) and len(missing) <= MOST_WITH_THEM


def _done(pod: Object | None, now: datetime, lost_after_seconds: float) -> bool:
    return pod is not None and (has_gate(pod.get("spec")) or is_lost(pod, now, lost_after_seconds))


def _deletions(
    workload: PoolWorkload, live: Object, own: _Pods, due: Sequence[int], *, gate: bool
) -> tuple[PodDeletion, ...]:
    """The pods to be created anew, by a template that the controller has seen."""
    if not seen_by_controller(live) or creates_gated(live) != gate:
        return ()
    there = {index: pod for index, pod in own.by_index.items() if not _leaving(pod)}
    taking = [index for index in sorted(own.held) if index in there and not has_gate(there[index].get("spec"))]
    if workload.in_queue:
        queued = workload.pods_of(workload.queued)
        told = {index: Reason.LEARNER_QUEUED if index in queued else Reason.LEARNER_HELD for index in taking}
        return tuple(one for index in taking for one in _of(workload, there, [index], told[index]))[
            :MOST_AT_ONCE
        ] or _of(workload, there, due, None)
    if gate:
        return _of(workload, there, taking, Reason.LEARNER_HELD)
    waiting = [index for index, pod in sorted(there.items()) if index not in own.held and has_gate(pod.get("spec"))]
    if waiting:
        return _of(workload, there, waiting, None)
    return _of(workload, there, due, None)


def _rollout(workload: PoolWorkload, live: Object, own: _Pods, lost_after_seconds: float) -> _Rollout:
    """What becomes of pods that have another template than their set: those of one learner are replaced.

    Of one that does not work first, then from the last on, while all others work. What an elastic pool can do without
    need not work: there may never be nodes for all.
    """
    there = {index: own.by_index[index] for index in own.others if _stays(own.by_index.get(index))}
    old = [index for index, pod in there.items() if is_outdated(pod, live)]
    if not old or (creates_gated(live) and not workload.in_queue):
        return _Rollout()
    learner_of = workload.learner_of
    idle = [index for index in own.others if index not in there or not is_ready(there[index])]
    without = {learner_of(i) for i in idle if _has_no_node(own.by_index.get(i), own.now, lost_after_seconds)}
    waits_for = {learner_of(index) for index in idle}
    due = [index for index in old if learner_of(index) in waits_for]
    if workload.can_do_without(len(without)):
        waits_for -= without
    if any(index not in there and learner_of(index) in waits_for for index in idle):
        due = []  # it is being replaced
    elif not waits_for:
        due = due or old
    due = [index for index in due if learner_of(index) == learner_of(due[-1])]
    count = len({learner_of(index) for index in old} - {f"{workload.pool}/{index}" for index in workload.held})
    return _Rollout(due, count, frozenset() if due else frozenset(waits_for))


def _has_no_node(pod: Object | None, now: datetime, lost_after_seconds: float) -> bool:
    """Whether it waits for one, or its own does not respond."""
    return pod is not None and (
        is_unschedulable(pod) or is_on_silent_node(pod) or is_lost(pod, now, lost_after_seconds)
    )


def _stays(pod: Object | None) -> bool:
    return pod is not None and not _leaving(pod)


def _of(
    workload: PoolWorkload, pods: Mapping[int, Object], indices: Sequence[int], reason: Reason | None
) -> tuple[PodDeletion, ...]:
    return tuple(
        PodDeletion(
            ChildKey("Pod", str(pods[index]["metadata"]["name"]), workload.key.cluster),
            str(pods[index]["metadata"]["uid"]),
            reason,
            workload.name_of(index),
            node_of(pods[index]),
            by_force=False,
        )
        for index in indices[:MOST_AT_ONCE]
    )


def pods_by_set(pods: Iterable[PodObserved]) -> dict[SetUid, dict[int, Object]]:
    """The pods of every set, by their indices."""
    found: dict[SetUid, dict[int, Object]] = {}
    for observed in pods:
        index = index_of(observed.pod)
        if index is None:
            continue
        for owner in observed.pod["metadata"].get("ownerReferences") or ():
            if owner.get("controller"):
                found.setdefault((observed.cluster, str(owner.get("uid", ""))), {})[index] = observed.pod
    return found


def set_of(workload: PoolWorkload) -> SetUid:
    """The set of a pool."""
    live = workload.live or {"metadata": {}}
    return workload.key.cluster, str(live["metadata"].get("uid", "none"))


def _leaving(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))
