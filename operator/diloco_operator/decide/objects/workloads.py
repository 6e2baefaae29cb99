"""The job's StatefulSets, Deployment and claim: how many pods they want, have ready and have left.

A learner of several nodes has a pod on each. Everything is decided by learner; `PoolWorkload` knows whose a pod is.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from diloco.spec.placement import Pool
from diloco.spec.status.job import UnplacedLearner
from diloco_operator import labels, names
from diloco_operator.decide.causes.pods import is_ready
from diloco_operator.decide.observed import ChildKey, Object
from diloco_operator.decide.status.text import parsed_time
from diloco_operator.manifests.placement.holds import creates_gated
from diloco_operator.names import PoolKey, SetNames

STATEFUL_SET = "StatefulSet"
DEPLOYMENT = "Deployment"
CLAIM = "PersistentVolumeClaim"
SETTLING = timedelta(seconds=30)
"""A pod that has just become ready may not be reachable yet: its Service's endpoints lag behind, and learners take a
moment to join again (ours)."""
_MOST_DIGITS: Final = 8


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
    nodes: int = 1
    """Nodes of a learner, a pod on each: learner i has the pods i * nodes to (i + 1) * nodes - 1."""
    unplaced: tuple[UnplacedLearner, ...] = ()
    """Learners of which only some pods found a node (`learners.unplaced`)."""
    in_queue: bool = False
    """Whether Kueue decides which of its learners run: then pods are created with a gate, which a patch removes."""
    queued: frozenset[int] = frozenset()
    """Indices of the learners that Kueue has no quota for."""

    def learner_of(self, pod: int) -> str:
        """The id of the learner of a pod."""
        return f"{self.pool}/{pod // self.nodes}"

    def name_of(self, pod: int) -> str:
        """The learner of a pod for people, with the number of its node if it has several."""
        learner = self.learner_of(pod)
        return learner if self.nodes == 1 else f"{learner} (node {pod % self.nodes})"

    def pods_of(self, learners: Iterable[int]) -> frozenset[int]:
        """The indices of the pods of learners."""
        return frozenset(one * self.nodes + node for one in learners for node in range(self.nodes))

    def by_learner(self, pods: Mapping[int, Object]) -> dict[int, list[Object]]:
        """The pods of each learner, in the order of its nodes; ``pods``: by index."""
        found: dict[int, list[Object]] = {}
        for index in sorted(pods):
            found.setdefault(index // self.nodes, []).append(pods[index])
        return found

    def is_ready(self, pods: Collection[Object]) -> bool:
        """Whether these pods of a learner are all of them, and ready."""
        return len(pods) == self.nodes and all(map(is_ready, pods))

    @property
    def pods(self) -> int:
        """Pods that its set has when the job runs, with those that are held back."""
        return self._learners * self.nodes

    @property
    def _learners(self) -> int:
        return self.desired + len(self.left_out)

    @property
    def out(self) -> frozenset[int]:
        """Indices of the learners that do not take part."""
        return self.left_out | self.given_up | self.queued

    @property
    def out_learners(self) -> frozenset[str]:
        """Their ids."""
        return frozenset(f"{self.pool}/{index}" for index in self.out)

    @property
    def apart(self) -> frozenset[int]:
        """Indices of the learners that are held back because only some of their pods found a node."""
        return frozenset(one.index for one in self.unplaced if one.until is not None)

    @property
    def held(self) -> frozenset[int]:
        """Indices of the learners whose pods are held back, without a node."""
        return self.out | self.apart

    @property
    def wanted(self) -> int:
        """Learners that should be ready."""
        return self._learners - len(self.out)

    @property
    def indices(self) -> frozenset[int]:
        """Indices of the learners that the manifest asks for."""
        return frozenset(range(self._learners)) - self.left_out

    def can_do_without(self, learners: int) -> bool:
        """Whether it is elastic and needs none of so many learners, of those that may run.

        The minimum is about learners that run. One that is given up, or held back, is none. It is reported by itself,
        so no more are needed than those that may run and do not run elsewhere.
        """
        if self.minimum is None:
            return False
        return self.wanted - learners >= min(self.minimum, self.wanted - self.elsewhere)

    @property
    def ready_pods(self) -> int:
        """Pods that are ready."""
        return number_of(status_of(self.live).get("readyReplicas"))

    @property
    def healthy(self) -> bool:
        """Whether every wanted pod exists and is ready, by its controller's latest status."""
        return self.live is not None and seen_by_controller(self.live) and self.ready_pods >= self.wanted * self.nodes

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


def may_have_outdated(workload: PoolWorkload) -> bool:
    """Whether pods that should run may have another template than their set: they have, are missing, or end."""
    live, status = workload.live, status_of(workload.live)
    # While pods to be held back are created, the others have another template, and keep it.
    gates = live is not None and creates_gated(live) and not workload.in_queue
    if live is None or gates or not seen_by_controller(live) or not status.get("updateRevision"):
        return False
    updated = number_of(status.get("updatedReplicas"))  # left out where it is 0
    return updated < workload.pods - len(workload.held) * workload.nodes


def is_outdated(pod: Object, live: Object) -> bool:
    """Whether a pod has another template than its set, by what the controller has seen. False: not known either."""
    own = (pod["metadata"].get("labels") or {}).get("controller-revision-hash")
    wanted = status_of(live).get("updateRevision")
    return bool(own and wanted) and own != wanted


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
        live, nodes = children.get(key), pool.nodes_per_learner
        found.append(PoolWorkload(name, key, live, pool.size, minimum, left_out, gone, nodes=nodes))
    return found


def index_of(pod: Object) -> int | None:
    """The index of a pod in its set, by its name; None: it has none."""
    index = str(pod["metadata"].get("name", "")).rpartition("-")[2]
    return int(index) if index.isascii() and index.isdigit() and len(index) < _MOST_DIGITS else None


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
