"""Which pods of a job are left, and how they are removed: learners first, then the syncer.

Pure. It uses only the live objects, so that a job can be stopped whatever its manifest says. Learner pods on a node
that does not respond are not waited for: they cannot hand in work.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diloco.spec.placement import LostPods
from diloco_operator import labels
from diloco_operator.decide.causes.pods import is_lost
from diloco_operator.decide.clusters import HOME, Clusters
from diloco_operator.decide.objects.workloads import DEPLOYMENT, STATEFUL_SET, component, pods_counted, replicas
from diloco_operator.decide.observed import ChildKey, Object, PodList
from diloco_operator.decide.plan import Scaling


@dataclass(frozen=True, slots=True)
class LostPodPolicy:
    """``failurePolicy.lostPods``."""

    replaces: bool
    after_seconds: float


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


@dataclass(frozen=True, slots=True)
class PodsLeft:
    """Pods that exist or may be being created."""

    learners: int
    """Learners' pods, without lost ones."""
    syncers: int
    """The syncer's pods, with lost ones: on a node that does not respond it may still write to its volume."""
    lost: int
    """Learners' pods that are being deleted on nodes that do not respond."""
    remote: int = 0
    """How many of ``learners`` are in other clusters."""
    unseen: int = 0
    """Clusters that do not answer, and of which nothing has been seen yet: they may have learners."""
    given_up: tuple[str, ...] = ()
    """Clusters that may have learners too, but have not answered for so long that they are not waited for."""

    @property
    def any(self) -> bool:
        """Whether something can still be waited for."""
        return bool(self.learners or self.syncers or self.unseen)


def pods_left(
    children: Mapping[ChildKey, Object], looked: PodList | None, clusters: Clusters, lost_after_seconds: float
) -> PodsLeft:
    """The pods that are left, from the list of pods and from the sets' own counts.

    A Deployment does not count pods that are being deleted; the list contains them. ``lost_after_seconds``: how long
    after its grace period a pod counts as lost.
    """
    counted = {
        cluster: _learners_left(cluster, children, looked, clusters, lost_after_seconds)
        for cluster in (HOME, *clusters.others)
    }
    awaited = [left for cluster, left in counted.items() if clusters.awaited(cluster)]
    pods = () if looked is None else looked.pods
    # The syncer is at home. In another cluster, anybody may label a pod like it.
    seen = sum(component(one.pod) == labels.SYNCER for one in pods if one.cluster == HOME)
    deployed = sum(pods_counted(live) for key, live in children.items() if _is_syncers(key))
    learners = sum(left.learners for left in awaited)
    return PodsLeft(
        learners=learners,
        syncers=max(deployed, seen),
        lost=sum(left.lost for left in awaited),
        remote=learners - counted[HOME].learners,
        unseen=sum(left.unseen for left in awaited),
        given_up=tuple(
            cluster
            for cluster, left in counted.items()
            if not clusters.awaited(cluster) and (left.learners or left.unseen)
        ),
    )


@dataclass(frozen=True, slots=True)
class _LearnersLeft:
    learners: int = 0
    lost: int = 0
    unseen: bool = False


def _learners_left(
    cluster: str,
    children: Mapping[ChildKey, Object],
    looked: PodList | None,
    clusters: Clusters,
    lost_after_seconds: float,
) -> _LearnersLeft:
    """The learners' pods of one cluster."""
    if clusters.is_duplicate(cluster):
        return _LearnersLeft()
    pods = [] if looked is None else [one.pod for one in looked.pods if one.cluster == cluster]
    learners = [pod for pod in pods if component(pod) == labels.LEARNER]
    lost = sum(is_lost(pod, clusters.now, lost_after_seconds) for pod in learners)
    sets = [live for key, live in children.items() if (key.kind, key.cluster) == (STATEFUL_SET, cluster)]
    counted = max(sum(map(pods_counted, sets)), len(learners))
    # A set that wants pods may still create them, whatever becomes of its old ones.
    asked = sum(map(replicas, sets))
    return _LearnersLeft(max(counted - lost, asked), lost, unseen=not sets and clusters.never_seen(cluster))


def scaled_to_nothing(children: Mapping[ChildKey, Object], left: PodsLeft, clusters: Clusters) -> tuple[Scaling, ...]:
    """Scale all learners to 0, and once they are gone the syncer, so that its last checkpoint has their work."""
    wanted = {key: 0 for key in children if key.kind == STATEFUL_SET and clusters.writable(key)}
    if not (left.learners or left.unseen):
        wanted |= {key: 0 for key in children if _is_syncers(key)}
    return scaled_down(children, wanted)


def _is_syncers(key: ChildKey) -> bool:
    return key.kind == DEPLOYMENT and key.cluster == HOME


def scaled_down(children: Mapping[ChildKey, Object], wanted: Mapping[ChildKey, int]) -> tuple[Scaling, ...]:
    """The sets that want more pods than they should have."""
    return tuple(
        Scaling(key, str(live["metadata"]["uid"]), wanted[key])
        for key, live in sorted(children.items(), key=lambda item: item[0])
        if key in wanted and wanted[key] < replicas(live)
    )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
