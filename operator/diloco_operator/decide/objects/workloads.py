"""The job's StatefulSets, Deployment and claim: how many pods they want, have ready and have left."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from diloco.spec.placement import Pool
from diloco_operator import labels, names
from diloco_operator.decide.observed import ChildKey, Object
from diloco_operator.decide.status.text import parsed_time
from diloco_operator.manifests.placement.holds import creates_gated, is_on_delete
from diloco_operator.names import PoolKey, SetNames

STATEFUL_SET = "StatefulSet"
DEPLOYMENT = "Deployment"
CLAIM = "PersistentVolumeClaim"
SETTLING = timedelta(seconds=30)
"""A pod that has just become ready may not be reachable yet: its Service's endpoints lag behind, and learners take a
moment to join again (ours)."""


@dataclass(frozen=True, slots=True)
class PoolWorkload:
    """The learners of one pool."""

    pool: PoolKey
    key: ChildKey
    live: Object | None
    desired: int
    """Learners that the manifest asks for, whether or not they should run now; of an elastic pool the most."""
    minimum: int | None = None
    """The fewest of an elastic pool; None: it is not elastic."""
    left_out: frozenset[int] = frozenset()
    """Indices that the manifest leaves out (``excludedIndices``)."""
    given_up: frozenset[int] = frozenset()
    """Indices of the learners that the syncer has given up."""
    elsewhere: int = 0
    """Learners that run in the region's next pool, because they find no node here."""

    @property
    def pods(self) -> int:
        """Pods that its set has when the job runs, with those that are held back."""
        return self.desired + len(self.left_out)

    @property
    def held(self) -> frozenset[int]:
        """Indices whose pods are held back, without a node."""
        return self.left_out | self.given_up

    @property
    def held_learners(self) -> frozenset[str]:
        """Ids of the learners whose pods are held back."""
        return frozenset(f"{self.pool}/{index}" for index in self.held)

    @property
    def wanted(self) -> int:
        """Pods that should be ready."""
        return self.pods - len(self.held)

    @property
    def indices(self) -> frozenset[int]:
        """Indices of the learners that the manifest asks for."""
        return frozenset(range(self.pods)) - self.left_out

    def can_do_without(self, learners: int) -> bool:
        """Whether it is elastic and needs none of so many learners, of those that may run.

        The minimum is about learners that run. One that is given up, or held back, is none. It is reported by itself,
        so no more are needed than those that may run and do not run elsewhere.
        """
        if self.minimum is None:
            return False
        return self.wanted - learners >= min(self.minimum, self.wanted - self.elsewhere)

    @property
    def ready(self) -> int:
        """Learners whose pod is ready."""
        return number_of(status_of(self.live).get("readyReplicas"))

    @property
    def healthy(self) -> bool:
        """Whether every wanted pod exists and is ready, by its controller's latest status."""
        return self.live is not None and seen_by_controller(self.live) and self.ready >= self.wanted

    @property
    def surplus(self) -> bool:
        """Whether more pods exist than wanted: some are being deleted, or cannot be."""
        return (self._counted or 0) > self.pods

    @property
    def short(self) -> bool:
        """Whether fewer pods exist than wanted, because something keeps the controller from creating them."""
        return self._counted is not None and self._counted < self.pods

    @property
    def _counted(self) -> int | None:
        """Pods that exist, by the controller's latest status; None: it is not known."""
        if self.live is None or not seen_by_controller(self.live):
            return None
        return number_of(status_of(self.live).get("replicas"))


def rollout_waits(workload: PoolWorkload) -> int:
    """Number of learners without the changed template yet; 0: all have it, or it is not known.

    A StatefulSet changes its pods one after the other, from the last to the first, and waits for each to be ready.
    """
    status = status_of(workload.live)
    # While pods to be held back are created, the others have another template, and keep it.
    live = workload.live
    if live is None or creates_gated(live) or not seen_by_controller(live) or "updatedReplicas" not in status:
        return 0
    if status.get("currentRevision") == status.get("updateRevision"):
        return 0  # there is one template: a pod that is missing, or ends, counts as not updated too
    changed = workload.wanted if is_on_delete(live) else workload.pods
    return max(0, changed - number_of(status["updatedReplicas"]))


def pool_workloads(
    sets: SetNames,
    desired: Mapping[PoolKey, Pool],
    regions: Mapping[str, str],
    children: Mapping[ChildKey, Object],
    given_up: Collection[str] = (),
) -> list[PoolWorkload]:
    """One for every pool, in the manifest's order.

    ``regions``: the cluster of each region. ``given_up``: ids of the learners that the syncer has given up.
    """
    out = {learner.rpartition("/")[::2] for learner in given_up}
    found = []
    for name, pool in desired.items():
        key = ChildKey(STATEFUL_SET, sets[name], regions[name.region])
        minimum = pool.minimum_learners if pool.elastic else None
        gone = frozenset(index for index in pool.indices if (str(name), str(index)) in out) if out else frozenset()
        left_out = frozenset(pool.excluded_indices)
        found.append(PoolWorkload(name, key, children.get(key), pool.size, minimum, left_out, gone))
    return found


def syncer_deployment(job: str, children: Mapping[ChildKey, Object]) -> Object | None:
    """The syncer's Deployment, if it exists."""
    return children.get(ChildKey(DEPLOYMENT, names.syncer(job)))


def syncer_claim(job: str, children: Mapping[ChildKey, Object]) -> Object | None:
    """The syncer's claim, if it exists."""
    return children.get(ChildKey(CLAIM, names.syncer(job)))


def is_bound(claim: Object | None) -> bool:
    """Whether the claim is bound to a volume."""
    return ((claim or {}).get("status") or {}).get("phase") == "Bound"


def syncer_ready(deployment: Object | None) -> bool:
    """Whether the syncer's pod is ready."""
    return number_of(status_of(deployment).get("readyReplicas")) > 0


def is_settled(deployment: Object | None, now: datetime) -> bool:
    """Whether a Deployment has been available for a while."""
    for condition in status_of(deployment).get("conditions") or ():
        if condition.get("type") == "Available" and condition.get("status") == "True":
            at = parsed_time(condition.get("lastTransitionTime"))
            return at is None or now - at >= SETTLING
    return False


def rolls_out(deployment: Object | None) -> bool:
    """Whether the pod of a Deployment (``Recreate``) is being replaced, because its template was changed.

    The old pod ends first: until then there is none of the new template, and the controller reports no progress.
    """
    if deployment is None or not seen_by_controller(deployment):
        return deployment is not None
    status = status_of(deployment)
    progress: Object = next((one for one in status.get("conditions") or () if one.get("type") == "Progressing"), {})
    starts = progress.get("status") == "True" and progress.get("reason") != "NewReplicaSetAvailable"
    return starts or number_of(status.get("updatedReplicas")) < replicas(deployment)


def component(item: Object) -> str:
    """Whether an object is a learner's or the syncer's; empty: neither."""
    return str((item["metadata"].get("labels") or {}).get(labels.COMPONENT, ""))


def pods_counted(live: Object) -> int:
    """Number of pods that a set or Deployment has by its own status, or may be creating."""
    asked, counted = replicas(live), number_of(status_of(live).get("replicas"))
    # Until the controller has observed the latest spec, its counts belong to an earlier one.
    return max(asked, counted, 0 if seen_by_controller(live) else 1)


def is_told_to_leave(live: Object) -> bool:
    """Whether a set has no pod, or all that it has were told to end. One on a node that does not respond may stay."""
    return replicas(live) == 0 and seen_by_controller(live)


def replicas(live: Object) -> int:
    """``spec.replicas``; 1 if it is missing."""
    asked = live.get("spec", {}).get("replicas")
    return 1 if asked is None else number_of(asked)


def seen_by_controller(live: Object) -> bool:
    """Whether the controller of a set or Deployment has seen its latest spec."""
    generation = number_of(live["metadata"].get("generation"))
    return number_of(status_of(live).get("observedGeneration")) >= generation


def number_of(value: object) -> int:
    """A count. The API server of another cluster may send anything: what is no number counts as 0."""
    return value if isinstance(value, int) else 0


def status_of(live: Object | None) -> Object:
    """Its status; empty if it has none."""
    return (live or {}).get("status") or {}
