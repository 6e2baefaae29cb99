"""Which pods of a job are left, and how they are removed: learners first, then the syncer.

Pure. It uses only the live objects, so that a job can be stopped whatever its manifest says. Learner pods on a node
that does not respond are not waited for: they cannot hand in work.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from diloco_operator import labels
from diloco_operator.decide.causes.pods import is_lost
from diloco_operator.decide.observed import ChildKey, Looked, Object
from diloco_operator.decide.plan import Scaling
from diloco_operator.decide.workloads import DEPLOYMENT, STATEFUL_SET, component, pods_counted, replicas


@dataclass(frozen=True, slots=True)
class PodsLeft:
    """Pods that exist or may be being created."""

    learners: int
    """Learners' pods, without lost ones."""
    syncers: int
    """The syncer's pods, with lost ones: on a node that does not respond it may still write to its volume."""
    lost: int
    """Learners' pods that are being deleted on nodes that do not respond."""

    @property
    def any(self) -> bool:
        """Whether something can still be waited for."""
        return bool(self.learners or self.syncers)


def pods_left(children: Mapping[ChildKey, Object], looked: Looked | None, now: datetime) -> PodsLeft:
    """The pods that are left, from the list of pods and from the sets' own counts.

    A Deployment does not count pods that are being deleted; the list contains them.
    """
    pods = () if looked is None else looked.pods
    learners = [one.pod for one in pods if component(one.pod) == labels.LEARNER]
    lost = sum(is_lost(pod, now) for pod in learners)
    sets = [live for key, live in children.items() if key.kind == STATEFUL_SET]
    counted = max(sum(map(pods_counted, sets)), len(learners))
    # A set that wants pods may still create them, whatever becomes of its old ones.
    asked = sum(map(replicas, sets))
    seen = sum(component(one.pod) == labels.SYNCER for one in pods)
    deployed = sum(pods_counted(live) for key, live in children.items() if key.kind == DEPLOYMENT)
    return PodsLeft(learners=max(counted - lost, asked), syncers=max(deployed, seen), lost=lost)


def scaled_to_nothing(children: Mapping[ChildKey, Object], left: PodsLeft) -> tuple[Scaling, ...]:
    """Scale all learners to 0, and once they are gone the syncer, so that its last checkpoint has their work."""
    wanted = {key: 0 for key in children if key.kind == STATEFUL_SET}
    if not left.learners:
        wanted |= {key: 0 for key in children if key.kind == DEPLOYMENT}
    return scaled_down(children, wanted)


def scaled_down(children: Mapping[ChildKey, Object], wanted: Mapping[ChildKey, int]) -> tuple[Scaling, ...]:
    """The sets that want more pods than they should have."""
    return tuple(
        Scaling(key, str(live["metadata"]["uid"]), wanted[key])
        for key, live in sorted(children.items(), key=lambda item: item[0])
        if key in wanted and wanted[key] < replicas(live)
    )
