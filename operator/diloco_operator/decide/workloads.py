"""The job's StatefulSets, Deployment and claim: how many pods they want, have ready and have left."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from diloco.spec.placement import Pool
from diloco_operator import labels, names
from diloco_operator.decide.observed import ChildKey, Object
from diloco_operator.decide.text import parsed_time
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

    def can_do_without(self, learners: int) -> bool:
        """Whether it is elastic and has its minimum without so many learners."""
        return self.minimum is not None and self.desired - learners >= self.minimum

    @property
    def ready(self) -> int:
        """Learners whose pod is ready."""
        return _number(_status(self.live).get("readyReplicas"))

    @property
    def healthy(self) -> bool:
        """Whether every wanted pod exists and is ready, by its controller's latest status."""
        return self.live is not None and _seen(self.live) and self.ready >= self.desired

    @property
    def surplus(self) -> bool:
        """Whether more pods exist than wanted: some are being deleted, or cannot be."""
        return self.live is not None and _seen(self.live) and _number(_status(self.live).get("replicas")) > self.desired

    @property
    def short(self) -> bool:
        """Whether fewer pods exist than wanted, because something keeps the controller from creating them."""
        return self.live is not None and _seen(self.live) and _number(_status(self.live).get("replicas")) < self.desired


def rollout_waits(workload: PoolWorkload) -> int:
    """Number of learners without the changed template yet; 0: all have it, or it is not known.

    A StatefulSet changes its pods one after the other, from the last to the first, and waits for each to be ready.
    """
    status = _status(workload.live)
    if workload.live is None or not _seen(workload.live) or "updatedReplicas" not in status:
        return 0
    return max(0, workload.desired - _number(status["updatedReplicas"]))


def set_names(
    job: str,
    pools: Iterable[PoolKey],
    children: Mapping[ChildKey, Object],
    foreign: Collection[ChildKey],
    said: Mapping[PoolKey, str],
) -> dict[PoolKey, str]:
    """The name of each pool's StatefulSet at home: for an existing one the name it has, by whichever rule.

    ``said`` is the name in the status. It is used if a set of an earlier release is not found by its labels (because
    they were removed), so that no second one is created beside it; but not if another job has that name.
    """
    there: dict[tuple[str, str], list[str]] = {}
    for key, item in sorted(children.items(), key=lambda pair: pair[0]):
        if key.kind == STATEFUL_SET and not key.cluster:
            its = item["metadata"].get("labels") or {}
            there.setdefault((its.get(labels.REGION, ""), its.get(labels.POOL, "")), []).append(key.name)
    found = {}
    for pool in pools:
        mine, earlier = there.get((pool.region, pool.pool), []), names.earlier_stateful_set(job, pool)
        taken = not {ChildKey(STATEFUL_SET, earlier), ChildKey("Secret", names.learner_secret(earlier))}.isdisjoint(
            foreign
        )
        kept = said.get(pool)
        if mine:
            found[pool] = kept if kept in mine else mine[0]
        else:
            found[pool] = earlier if kept == earlier and not taken else names.stateful_set(job, pool)
    return found


def pool_workloads(
    sets: SetNames,
    desired: Mapping[PoolKey, Pool],
    regions: Mapping[str, str],
    children: Mapping[ChildKey, Object],
) -> list[PoolWorkload]:
    """One for every pool, in the manifest's order. ``regions``: the cluster of each region."""
    found = []
    for name, pool in desired.items():
        key = ChildKey(STATEFUL_SET, sets[name], regions[name.region])
        minimum = pool.minimum_learners if pool.elastic else None
        found.append(PoolWorkload(name, key, children.get(key), pool.learners, minimum))
    return found


def syncer_deployment(job: str, children: Mapping[ChildKey, Object]) -> Object | None:
    """The syncer's Deployment, if it exists."""
    return children.get(ChildKey(DEPLOYMENT, names.syncer(job)))


def syncer_claim(job: str, children: Mapping[ChildKey, Object]) -> Object | None:
    """The syncer's claim, if it exists."""
    return children.get(ChildKey(CLAIM, names.syncer(job)))


def syncer_ready(deployment: Object | None) -> bool:
    """Whether the syncer's pod is ready."""
    return _number(_status(deployment).get("readyReplicas")) > 0


def is_settled(deployment: Object | None, now: datetime) -> bool:
    """Whether a Deployment has been available for a while."""
    for condition in _status(deployment).get("conditions") or ():
        if condition.get("type") == "Available" and condition.get("status") == "True":
            at = parsed_time(condition.get("lastTransitionTime"))
            return at is None or now - at >= SETTLING
    return False


def component(item: Object) -> str:
    """Whether an object is a learner's or the syncer's; empty: neither."""
    return str((item["metadata"].get("labels") or {}).get(labels.COMPONENT, ""))


def pods_counted(live: Object) -> int:
    """Number of pods that a set or Deployment has by its own status, or may be creating."""
    asked, counted = replicas(live), _number(_status(live).get("replicas"))
    # Until the controller has observed the latest spec, its counts belong to an earlier one.
    return max(asked, counted, 0 if _seen(live) else 1)


def replicas(live: Object) -> int:
    """``spec.replicas``; 1 if it is missing."""
    asked = live.get("spec", {}).get("replicas")
    return 1 if asked is None else _number(asked)


def _seen(live: Object) -> bool:
    generation = _number(live["metadata"].get("generation"))
    return _number(_status(live).get("observedGeneration")) >= generation


def _number(value: object) -> int:
    """A count. The API server of another cluster may send anything: what is no number counts as 0."""
    return value if isinstance(value, int) else 0


def _status(live: Object | None) -> Object:
    return (live or {}).get("status") or {}
