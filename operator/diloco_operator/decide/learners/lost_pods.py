"""Which pods on nodes that do not respond are deleted by force, and why the others stay.

Kubernetes keeps such a pod, because it cannot know whether its processes still run. For a learner that does not matter:
the syncer turns the older of two processes with one identity away. For the syncer it does: two on one volume damage its
checkpoints, so only a person can say that its machine is off. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from diloco.spec.status.engine import LearnerState
from diloco.spec.words import shortlist
from diloco_operator.decide.causes.cause import Cause
from diloco_operator.decide.causes.claims import claims_of
from diloco_operator.decide.causes.pods import is_on_silent_node, node_of, seconds_until_lost
from diloco_operator.decide.guide import GUIDE
from diloco_operator.decide.job_now import JobNow
from diloco_operator.decide.objects.workloads import (
    CLAIM,
    STATEFUL_SET,
    PoolWorkload,
    is_settled,
    pods_counted,
)
from diloco_operator.decide.observed import ChildKey, Object, PodObserved, SyncerStatusView
from diloco_operator.decide.plan import JobEvent, PodDeletion
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.text import one_line
from diloco_operator.objects import uid_of

POD: Final = "Pod"
SYNCER_STOPPED: Final = "diloco.dev/syncer-stopped"
"""Annotation of a job: the uid of the syncer's pod whose machine is off, as a person knows."""
MOST_AT_ONCE: Final = 100
"""Pods deleted in one reconcile (ours): other jobs wait for it."""
_SOON_SECONDS: Final = 1.0
"""Until the next reconcile, if there are more."""
_SHARED: Final = frozenset({"ReadWriteMany", "ReadOnlyMany"})
"""Access modes of claims that a pod on another node can mount while the old one is there."""
_GONE: Final = frozenset({LearnerState.ABSENT, LearnerState.GIVEN_UP})
"""States of a learner without a session. Any other one, of a newer syncer too, says that it may have one."""
_TAINT: Final = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
_LONGEST_TOLD: Final = 60


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of a job's lost pods."""

    delete: tuple[PodDeletion, ...] = ()
    causes: tuple[Cause, ...] = ()
    lost: frozenset[str] = frozenset()
    """Uids of all lost pods."""
    again_in_seconds: float = float("inf")
    """When to decide again, at the latest."""


def lost_pods(job_now: JobNow, *, stopping: bool) -> Finding:
    """Decide about every pod that was listed. Deletes a bounded number, those of the syncer first.

    ``stopping``: the job is suspended or has ended.
    """
    after_seconds = job_now.lost_pod_policy.after_seconds
    due = [(seconds_until_lost(one.pod, job_now.now, after_seconds), one) for one in _listed_pods(job_now)]
    lost = [one for seconds, one in due if seconds <= 0]
    again = min((seconds for seconds, _ in due if seconds > 0), default=float("inf"))
    # Nothing but a person moves the syncer from such a node, so nothing is waited for before that is said.
    gone = [one for one in job_now.syncer_pods if one in lost or is_on_silent_node(one.pod)]
    released, syncer_causes = _syncers(job_now, gone)
    found = list(_learners(job_now, lost, stopping=stopping))
    doomed = [*released, *(one.deletion for one in found if not one.why)]
    return Finding(
        delete=tuple(doomed[:MOST_AT_ONCE]),
        causes=(*syncer_causes, *_learner_causes(found, stopping=stopping)),
        lost=frozenset(uid_of(one.pod) for one in lost),
        again_in_seconds=min(again, _SOON_SECONDS) if len(doomed) > MOST_AT_ONCE else again,
    )


def deletion_events(deleted: Iterable[PodDeletion]) -> tuple[JobEvent, ...]:
    """One event for each reason, about the pods that were deleted for it."""
    by_reason: dict[Reason, list[PodDeletion]] = {}
    for one in deleted:
        if one.reason is not None:
            by_reason.setdefault(one.reason, []).append(one)
    return tuple(
        JobEvent(GUIDE[reason].severity, reason.value, one_line(_told(ones))) for reason, ones in by_reason.items()
    )


def _told(ones: Sequence[PodDeletion]) -> str:
    if ones[0].by_force:
        return f"deleted by force: {_listed(ones)}"
    named = [f"pod {one.child.name} of {one.whose}" for one in ones]
    if ones[0].reason == Reason.LEARNER_QUEUED:
        return f"Kueue has taken back the quota; they leave after a last push: {shortlist(named)}"
    return f"held back, so that no node is kept for it: {shortlist(named)}"


def _listed(ones: Sequence[PodDeletion]) -> str:
    named = [f"pod {one.child.name} of {one.whose} on {one.node or 'an unknown node'}" for one in ones]
    return f"{shortlist(named)}, which {_responds(len({one.node for one in ones}))}"


def _responds(nodes: int) -> str:
    return "does not respond" if nodes == 1 else "do not respond"


class _Why(NamedTuple):
    """Why a pod stays."""

    kind: str
    """The same for pods that stay for one reason."""
    text: str


class _Lost(NamedTuple):
    """A learner's lost pod."""

    workload: PoolWorkload
    learner: str
    deletion: PodDeletion
    why: _Why | None
    """Why it stays; None: it is deleted."""


@dataclass(frozen=True, slots=True)
class _Sessions:
    """Which learners may have a session with the syncer."""

    heard: frozenset[str]
    """Those that the syncer reports."""
    doubt: _Why | None
    """Why others may have one too; None: they have none."""


def _listed_pods(job_now: JobNow) -> tuple[PodObserved, ...]:
    looked = job_now.observed.looked
    return () if looked is None else looked.pods


def _learners(job_now: JobNow, lost: Iterable[PodObserved], *, stopping: bool) -> Iterator[_Lost]:
    sets = {(one.key.cluster, one.key.name): one for one in job_now.workloads}
    sessions = _sessions(job_now, stopping=stopping)
    for observed in lost:
        name = str(observed.pod["metadata"].get("name", ""))
        match = re.fullmatch(r"(.+)-([0-9]+)", name)
        workload = sets.get((observed.cluster, match[1])) if match else None
        child = ChildKey(POD, name, observed.cluster)
        # Labels alone are not enough: in another cluster, anybody may label a pod like a learner.
        if match is None or workload is None or not _controls(workload, observed.pod):
            continue
        if not job_now.clusters.writable(child):
            continue
        learner, whose = workload.learner_of(int(match[2])), workload.name_of(int(match[2]))
        deletion = PodDeletion(child, uid_of(observed.pod), Reason.LOST_POD_DELETED, whose, node_of(observed.pod))
        yield _Lost(workload, learner, deletion, _kept(job_now, observed, learner, sessions))


def _kept(job_now: JobNow, observed: PodObserved, learner: str, sessions: _Sessions) -> _Why | None:
    """Why a learner's pod is not deleted; None: nothing speaks against it."""
    if not job_now.lost_pod_policy.replaces:
        return _Why("policy", "spec.failurePolicy.lostPods.action is not Replace")
    if learner in sessions.heard:
        return _Why("heard", "the syncer still hears from the learner")
    return sessions.doubt or _mounted(job_now, observed) or _undeletable(job_now, observed)


def _sessions(job_now: JobNow, *, stopping: bool) -> _Sessions:
    """What the syncer says of the learners, or what its absence says."""
    view, doubt = job_now.observed.syncer, None
    if isinstance(view, SyncerStatusView):
        if not is_settled(job_now.deployment, job_now.now):
            doubt = _Why("started", "the syncer has just been started, and learners may not have joined it again")
        return _Sessions(frozenset(one.id for one in view.learners if one.state not in _GONE), doubt)
    # Without a syncer no learner has a session. While the job runs, one may be about to start.
    if not (stopping and _no_syncer(job_now)):
        doubt = _Why("unknown", "the syncer does not answer, so it is not known whether it hears from the learner")
    return _Sessions(frozenset(), doubt)


def _no_syncer(job_now: JobNow) -> bool:
    """Whether no pod of the syncer exists, and none is being created."""
    wanted = 0 if job_now.deployment is None else pods_counted(job_now.deployment)
    return job_now.observed.looked is not None and not wanted and not job_now.syncer_pods


def _mounted(job_now: JobNow, observed: PodObserved) -> _Why | None:
    """Whether a pod on another node could not, or should not, mount what this one mounts."""
    claims = {} if job_now.observed.looked is None else job_now.observed.looked.claims
    for name in claims_of(observed.pod):
        modes = claims.get(ChildKey(CLAIM, name, observed.cluster))
        if not modes:
            return _Why("unread", f"it mounts claim {name}, whose access modes are not known")
        alone = [mode for mode in modes if mode not in _SHARED]
        if alone:
            return _Why("claim", f"it mounts claim {name} with {one_line(alone[0], _LONGEST_TOLD)}")
    return None


def _undeletable(job_now: JobNow, observed: PodObserved) -> _Why | None:
    """What would keep it although it is deleted."""
    finalizers = observed.pod["metadata"].get("finalizers")
    if finalizers:
        return _Why("finalizer", f"its finalizer {one_line(str(finalizers[0]), _LONGEST_TOLD)} keeps it")
    if observed.cluster in job_now.observed.pods_forbidden:
        where = f"cluster {observed.cluster}" if observed.cluster else "this namespace"
        return _Why("forbidden", f"the operator has no right to delete pods in {where}")
    return None


def _learner_causes(found: Iterable[_Lost], *, stopping: bool) -> Iterator[Cause]:
    """One for each pool and each reason for which its pods stay."""
    groups: dict[tuple[ChildKey, str], list[_Lost]] = {}
    for one in found:
        groups.setdefault((one.workload.key, one.why.kind if one.why else ""), []).append(one)
    for ones in groups.values():
        first = min(ones, key=lambda one: one.deletion.child)
        workload = first.workload
        learners = {one.learner for one in ones}
        missed = len(learners - workload.out_learners)
        if first.why is None and not stopping and workload.can_do_without(missed):
            continue
        # A job that has ended needs none.
        whole = f" of {workload.desired} learners" if workload.desired else " learner(s)"
        nodes = sorted({one.deletion.node or "its node" for one in ones})
        told = f"{len(learners)}{whole} of {workload.pool} lost: {shortlist(nodes)} {_responds(len(nodes))}"
        pod = f"pod {first.deletion.child.name}"
        if first.why is not None:
            yield Cause(Reason.LOST_POD_KEPT, f"{told}, and {pod} stays: {first.why.text}")
        else:
            yield Cause(Reason.NODE_LOST, f"{told}; the operator {'removes' if stopping else 'replaces'} {pod}")


def _syncers(job_now: JobNow, gone: Iterable[PodObserved]) -> tuple[list[PodDeletion], list[Cause]]:
    """The syncer's pods on lost nodes that a person has released, and what to do about the others."""
    released, causes, stopped = [], [], job_now.annotation(SYNCER_STOPPED)
    for observed in gone:
        name, uid, node = str(observed.pod["metadata"].get("name", "")), uid_of(observed.pod), node_of(observed.pod)
        why = _undeletable(job_now, observed)
        if stopped == uid and why is None and observed.pod["metadata"].get("deletionTimestamp"):
            deletion = PodDeletion(ChildKey(POD, name), uid, Reason.LOST_POD_DELETED, "the syncer", node)
            released.append(deletion)
            continue
        text = (
            f"{node or 'its node'} does not respond, so the syncer's pod {name} stays; make sure that the machine is "
            f"off, then taint the node with {_TAINT}, or delete the Node object, or annotate the job with "
            f"{SYNCER_STOPPED}={uid}"
        )
        if stopped == uid and why is not None:
            text += f"; the annotation has no effect: {why.text}"
        elif stopped not in ("", uid):
            told = one_line(stopped, _LONGEST_TOLD)
            text += f"; that annotation is {told} at present, which is not the uid of this pod"
        causes.append(Cause(Reason.SYNCER_NODE_LOST, text))
    return released, causes


def _controls(workload: PoolWorkload, pod: Object) -> bool:
    """Whether a pod belongs to the pool's set, or to an earlier one of that name, whose pod has the name now."""
    owners: list[Object] = pod["metadata"].get("ownerReferences") or []
    owner = next((one for one in owners if one.get("controller")), {})
    if workload.live is not None and owner.get("uid") == workload.live["metadata"].get("uid"):
        return True
    return (owner.get("kind"), owner.get("name")) == (STATEFUL_SET, workload.key.name)
