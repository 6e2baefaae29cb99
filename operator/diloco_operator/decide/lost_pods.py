"""Which pods on nodes that do not respond are deleted by force, and why the others stay.

Kubernetes keeps such a pod, because it cannot know whether its processes still run. For a learner that does not matter:
the syncer turns the older of two processes with one identity away. For the syncer it does: two on one volume damage its
checkpoints, so only a person can say that its machine is off. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from diloco.spec.placement import LostPods
from diloco.spec.syncer_status import LearnerState
from diloco.spec.words import shortlist
from diloco_operator import labels
from diloco_operator.decide.causes.cause import Cause
from diloco_operator.decide.causes.claims import claims_of
from diloco_operator.decide.causes.pods import seconds_until_lost
from diloco_operator.decide.clusters import HOME, Clusters
from diloco_operator.decide.guide import GUIDE
from diloco_operator.decide.observed import ChildKey, Looked, Object, Observed, PodObserved, SyncerStatusView
from diloco_operator.decide.plan import JobEvent, PodDeletion
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.text import one_line
from diloco_operator.decide.workloads import CLAIM, STATEFUL_SET, PoolWorkload, component, is_settled, pods_counted

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
class LostPodPolicy:
    """``failurePolicy.lostPods``."""

    replaces: bool
    after_seconds: float


@dataclass(frozen=True, slots=True)
class Scene:
    """What a decision about lost pods needs."""

    workloads: Sequence[PoolWorkload]
    observed: Observed
    clusters: Clusters
    policy: LostPodPolicy
    deployment: Object | None
    """The syncer's."""
    syncer_stopped: str
    """The annotation; empty: the job has none."""
    stopping: bool
    """The job is suspended or has ended."""

    @property
    def looked(self) -> Looked:
        """The pods, if they were listed."""
        return self.observed.looked or Looked()

    @property
    def now(self) -> datetime:
        """The time."""
        return self.clusters.now


@dataclass(frozen=True, slots=True)
class Verdict:
    """Actions and messages for a job's lost pods."""

    delete: tuple[PodDeletion, ...] = ()
    causes: tuple[Cause, ...] = ()
    lost: frozenset[str] = frozenset()
    """Uids of all lost pods."""
    again_in_seconds: float = float("inf")
    """When to decide again, at the latest."""


def policy_of(job: Object) -> LostPodPolicy:
    """The policy of a job whose spec need not be readable. Nothing is deleted by a policy that cannot be read."""
    default = LostPods()
    given = _object(_object(job.get("spec")).get("failurePolicy")).get("lostPods")
    fields = _object(given)
    action, after = fields.get("action", default.action), fields.get("afterSeconds", default.after_seconds)
    known = isinstance(after, int) and not isinstance(after, bool) and after >= 0
    return LostPodPolicy(
        replaces=action == "Replace" and known and (given is None or isinstance(given, dict)),
        after_seconds=float(after if known else default.after_seconds),
    )


def lost_pods(scene: Scene) -> Verdict:
    """Decide about every pod that was listed. Deletes a bounded number, those of the syncer first."""
    due = [(seconds_until_lost(one.pod, scene.now, scene.policy.after_seconds), one) for one in scene.looked.pods]
    lost = [one for seconds, one in due if seconds <= 0]
    again = min((seconds for seconds, _ in due if seconds > 0), default=float("inf"))
    released, syncer_causes = _syncers(scene, lost)
    found = list(_learners(scene, lost))
    doomed = [*released, *(one.deletion for one in found if not one.why)]
    return Verdict(
        delete=tuple(doomed[:MOST_AT_ONCE]),
        causes=(*syncer_causes, *_learner_causes(found, stopping=scene.stopping)),
        lost=frozenset(_uid(one.pod) for one in lost),
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
    if ones[0].reason is Reason.LEARNER_MOVED:
        moved = [f"pod {one.child.name} of {one.whose} on {one.node}" for one in ones]
        return f"deleted, so that the next one comes to another node: {shortlist(moved)}"
    named = [f"pod {one.child.name} of {one.whose}" for one in ones]
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


def _learners(scene: Scene, lost: Iterable[PodObserved]) -> Iterator[_Lost]:
    sets = {(one.key.cluster, one.key.name): one for one in scene.workloads}
    reason = Reason.LOST_POD_REMOVED if scene.stopping else Reason.LOST_POD_REPLACED
    sessions = _sessions(scene)
    for observed in lost:
        name = str(observed.pod["metadata"].get("name", ""))
        match = re.fullmatch(r"(.+)-([0-9]+)", name)
        workload = sets.get((observed.cluster, match[1])) if match else None
        child = ChildKey(POD, name, observed.cluster)
        # Labels alone are not enough: in another cluster, anybody may label a pod like a learner.
        if match is None or workload is None or not _controls(workload, observed.pod):
            continue
        if not scene.clusters.writable(child):
            continue
        learner = f"{workload.pool}/{int(match[2])}"
        deletion = PodDeletion(child, _uid(observed.pod), reason, learner, _node(observed.pod))
        yield _Lost(workload, deletion, _kept(scene, observed, learner, sessions))


def _kept(scene: Scene, observed: PodObserved, learner: str, sessions: _Sessions) -> _Why | None:
    """Why a learner's pod is not deleted; None: nothing speaks against it."""
    if not scene.policy.replaces:
        return _Why("policy", "spec.failurePolicy.lostPods.action is not Replace")
    if learner in sessions.heard:
        return _Why("heard", "the syncer still hears from the learner")
    return sessions.doubt or _mounted(scene.looked.claims, observed) or _undeletable(scene, observed)


def _sessions(scene: Scene) -> _Sessions:
    """What the syncer says of the learners, or what its absence says."""
    view, doubt = scene.observed.syncer, None
    if isinstance(view, SyncerStatusView):
        if not is_settled(scene.deployment, scene.now):
            doubt = _Why("started", "the syncer has just been started, and learners may not have joined it again")
        return _Sessions(frozenset(one.id for one in view.learners if one.state not in _GONE), doubt)
    # Without a syncer no learner has a session. While the job runs, one may be about to start.
    if not (scene.stopping and _no_syncer(scene)):
        doubt = _Why("unknown", "the syncer does not answer, so it is not known whether it hears from the learner")
    return _Sessions(frozenset(), doubt)


def _no_syncer(scene: Scene) -> bool:
    """Whether no pod of the syncer exists, and none is being created."""
    wanted = 0 if scene.deployment is None else pods_counted(scene.deployment)
    return scene.observed.looked is not None and not wanted and not any(map(_is_syncers, scene.looked.pods))


def _mounted(claims: Mapping[ChildKey, tuple[str, ...]], observed: PodObserved) -> _Why | None:
    """Whether a pod on another node could not, or should not, mount what this one mounts."""
    for name in claims_of(observed.pod):
        modes = claims.get(ChildKey(CLAIM, name, observed.cluster))
        if not modes:
            return _Why("unread", f"it mounts claim {name}, whose access modes are not known")
        alone = [mode for mode in modes if mode not in _SHARED]
        if alone:
            return _Why("claim", f"it mounts claim {name} with {one_line(alone[0], _LONGEST_TOLD)}")
    return None


def _undeletable(scene: Scene, observed: PodObserved) -> _Why | None:
    """What would keep it although it is deleted."""
    finalizers = observed.pod["metadata"].get("finalizers")
    if finalizers:
        return _Why("finalizer", f"its finalizer {one_line(str(finalizers[0]), _LONGEST_TOLD)} keeps it")
    if observed.cluster in scene.observed.pods_forbidden:
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
        missed = sum(one.deletion.whose not in workload.held_learners for one in ones)
        if first.why is None and not stopping and workload.can_do_without(missed):
            continue
        # A job that has ended needs none.
        whole = f" of {workload.desired} learners" if workload.desired else " learner(s)"
        nodes = sorted({one.deletion.node or "its node" for one in ones})
        told = f"{len(ones)}{whole} of {workload.pool} lost: {shortlist(nodes)} {_responds(len(nodes))}"
        pod = f"pod {first.deletion.child.name}"
        if first.why is not None:
            yield Cause(Reason.LOST_POD_KEPT, f"{told}, and {pod} stays: {first.why.text}")
        else:
            yield Cause(Reason.NODE_LOST, f"{told}; the operator {'removes' if stopping else 'replaces'} {pod}")


def _syncers(scene: Scene, lost: Iterable[PodObserved]) -> tuple[list[PodDeletion], list[Cause]]:
    """The syncer's lost pods that a person has released, and what to do about the others."""
    released, causes = [], []
    for observed in filter(_is_syncers, lost):
        name, uid, node = str(observed.pod["metadata"].get("name", "")), _uid(observed.pod), _node(observed.pod)
        why = _undeletable(scene, observed)
        if scene.syncer_stopped == uid and why is None:
            deletion = PodDeletion(ChildKey(POD, name), uid, Reason.SYNCER_POD_RELEASED, "the syncer", node)
            released.append(deletion)
            continue
        text = (
            f"{node or 'its node'} does not respond, so the syncer's pod {name} stays; make sure that the machine is "
            f"off, then taint the node with {_TAINT}, or delete the Node object, or annotate the job with "
            f"{SYNCER_STOPPED}={uid}"
        )
        if scene.syncer_stopped == uid and why is not None:
            text += f"; the annotation has no effect: {why.text}"
        elif scene.syncer_stopped:
            told = one_line(scene.syncer_stopped, _LONGEST_TOLD)
            text += f"; that annotation is {told} at present, which is not the uid of this pod"
        causes.append(Cause(Reason.SYNCER_NODE_LOST, text))
    return released, causes


def _is_syncers(observed: PodObserved) -> bool:
    """Whether it is the syncer's, which is at home."""
    return observed.cluster == HOME and component(observed.pod) == labels.SYNCER


def _controls(workload: PoolWorkload, pod: Object) -> bool:
    """Whether a pod belongs to the pool's set, or to an earlier one of that name, whose pod has the name now."""
    owners: list[Object] = pod["metadata"].get("ownerReferences") or []
    owner = next((one for one in owners if one.get("controller")), {})
    if workload.live is not None and owner.get("uid") == workload.live["metadata"].get("uid"):
        return True
    return (owner.get("kind"), owner.get("name")) == (STATEFUL_SET, workload.key.name)


def _node(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _uid(pod: Object) -> str:
    return str(pod["metadata"].get("uid", ""))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
