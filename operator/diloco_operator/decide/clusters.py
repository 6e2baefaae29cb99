"""The clusters of a job at one moment: where its regions are, what may be written there, and what is waited for.

Pure. A cluster that does not answer is left as it is: learners there train on, and the syncer knows about them. Home is
the cluster that the operator runs in; it has the empty name and always answers.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from diloco.spec.status.job import FormerCluster, RegionStatus
from diloco_operator.cluster_state import DEFAULT_KEY, IN_USE, ClusterSeen, ClusterState, Credential, cluster_name
from diloco_operator.decide.observed import ChildKey, Object
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.text import one_line
from diloco_operator.manifests.abroad import KINDS
from diloco_operator.manifests.inputs import Remote, Remotes
from diloco_operator.objects import items_of, mapping
from diloco_operator.options import OperatorOptions

HOME: Final = ""
FINALIZER: Final = "diloco.dev/remote-children"
"""Keeps a job with regions in other clusters until its objects there are deleted; none is created there before."""
GIVE_UP_PLACE: Final = "diloco.dev/give-up-place"
"""Annotation of a job: a place in other clusters (`ClusterSeen.place`) in which its objects are left as they are."""
CREDENTIALS_WARNING: Final = timedelta(days=7)
"""Credentials that run out are reported this long before at most (ours)."""
_OF_LIFE: Final = 4
"""They are reported once this fraction of their life is left, a quarter."""

_REASONS: Final[Mapping[ClusterState, Reason]] = MappingProxyType(
    {
        ClusterState.UNREACHABLE: Reason.CLUSTER_UNREACHABLE,
        ClusterState.UNTRUSTED: Reason.CLUSTER_UNTRUSTED,
        ClusterState.UNAUTHORIZED: Reason.CLUSTER_UNAUTHORIZED,
        ClusterState.FORBIDDEN: Reason.CLUSTER_FORBIDDEN,
        ClusterState.HELD_BY_OTHER: Reason.CLUSTER_HELD_BY_OTHER,
        ClusterState.UNSUITABLE: Reason.CLUSTER_UNSUITABLE,
        ClusterState.KUBECONFIG_UNUSABLE: Reason.KUBECONFIG_UNUSABLE,
        ClusterState.TOO_MANY: Reason.TOO_MANY_CLUSTERS,
    }
)


@dataclass(frozen=True, slots=True)
class ClusterProblem:
    """Why a cluster is not as it should be."""

    reason: Reason
    message: str
    """One line that stays the same while the cause does."""


@dataclass(frozen=True, slots=True)
class Clusters:
    """The clusters of one job."""

    regions: Mapping[str, str]
    """The cluster of every region, in the manifest's order."""
    seen: Mapping[str, ClusterSeen]
    """As in `Observed.clusters`, without those of which nothing is known yet."""
    before: Mapping[str, RegionStatus]
    """Every region in the status as it was last written."""
    unscalable: Collection[str]
    """Clusters whose API server has refused a write of a StatefulSet."""
    finalized: bool
    """Whether the job has the finalizer."""
    now: datetime
    options: OperatorOptions
    former: tuple[FormerCluster, ...] = ()
    """Those in the status that no region named when it was written."""
    inhabited: Collection[str] = ()
    """Clusters in which objects of the job were seen."""
    given_up: str = ""
    """The place in which the user leaves the job's objects; empty: none."""

    @property
    def named(self) -> tuple[str, ...]:
        """The clusters other than home that regions are in, in the manifest's order."""
        return tuple(dict.fromkeys(cluster for cluster in self.regions.values() if cluster != HOME))

    @property
    def others(self) -> tuple[str, ...]:
        """The clusters other than home: those that regions are in, then those that may hold objects all the same."""
        had = (one.cluster for one in self._remembered if one.cluster)
        return tuple(dict.fromkeys([*self.named, *(cluster for cluster in had if self._place_before(cluster))]))

    def former_now(self) -> tuple[FormerCluster, ...]:
        """The clusters that no region is in and that may hold objects of the job."""
        return tuple(self._former(one) for one in self.others if one not in self.named and not self._is_left(one))

    def moved_from(self, cluster: str) -> str:
        """The place that holds the job's objects, if the Secret leads to another one now; empty: it does not."""
        seen, before = self.seen.get(cluster), self._place_before(cluster)
        moved = seen is not None and seen.place not in ("", before) and cluster not in self.inhabited
        return before if moved else ""

    def regions_in(self, cluster: str) -> tuple[str, ...]:
        """The names of the regions there."""
        return tuple(region for region, where in self.regions.items() if where == cluster)

    @property
    def needs_finalizer(self) -> bool:
        """Whether the job should have the finalizer and does not."""
        return bool(self.others) and not self.finalized

    def answers(self, cluster: str) -> bool:
        """Whether objects there are as they were observed, and can be written."""
        if cluster == HOME:
            return True
        seen = self.seen.get(cluster)
        return (
            seen is not None
            and seen.takes_writes
            and bool(seen.namespace)
            and bool(self.options.home_id)
            and self._duplicate_of(cluster) is None
            and not self.moved_from(cluster)
        )

    def writable(self, child: ChildKey) -> bool:
        """Whether this object may be created, changed or deleted."""
        if child.cluster == HOME:
            return True
        used = child.cluster in self.others and self.finalized and self.answers(child.cluster)
        # A former cluster may be the same place as another, which shows once that is known.
        known = child.cluster in self.named or all(one in self.seen for one in self.named)
        return used and known and child.kind not in self.seen[child.cluster].unlisted

    def remotes(self, endpoint: str) -> Remotes:
        """The other clusters that objects are made for.

        ``endpoint``: where learners there reach the syncer; empty: not known yet.
        """
        return {
            cluster: Remote(
                self.seen[cluster].namespace, self.options.home_id, endpoint, self.seen[cluster].assigns_users
            )
            for cluster in self.named
            if self.finalized and self.answers(cluster)
        }

    def awaited(self, cluster: str) -> bool:
        """Whether a job that stops waits for what was last seen there.

        It waits for a cluster that answers, but for one whose rules keep the operator from scaling sets.
        """
        if self.answers(cluster) and cluster not in self.unscalable:
            return True
        since = self.since(cluster)
        return since is None or (self.now - since).total_seconds() < self.options.remote_deletion_seconds

    def since(self, cluster: str) -> datetime | None:
        """Since when it has not been ready; None: it is."""
        if cluster == HOME or (cluster in self.seen and self.problem(cluster) is None):
            return None
        known = [one.since for one in self._told(cluster)]
        earliest = min((time for time in known if time is not None), default=None)
        if earliest is not None:
            return earliest
        return self.now.replace(microsecond=0) if cluster in self.seen else None

    def last_seen(self, cluster: str) -> datetime | None:
        """When it last gave a whole answer, while it does not; None: it answers, or never has."""
        if self.answers(cluster):
            return None
        seen = self.seen.get(cluster)
        if seen is not None and seen.seen_at is not None:
            return seen.seen_at.replace(microsecond=0)
        known = (one.last_seen_time for one in self._told(cluster))
        return next((time for time in known if time is not None), None)

    def never_seen(self, cluster: str) -> bool:
        """Whether it does not answer, and has not since the operator was started, so that learners may be there."""
        seen = self.seen.get(cluster)
        return self.finalized and not self.answers(cluster) and (seen is None or seen.seen_at is None)

    def is_duplicate(self, cluster: str) -> bool:
        """Whether another one leads to the same place, and is used instead."""
        return cluster in self.seen and self._duplicate_of(cluster) is not None

    def last_ready(self, region: str, pool: str) -> int:
        """How many learners of a pool were ready, by the status as it was last written."""
        pools = self.before[region].pools if region in self.before else ()
        return next((one.ready for one in pools if one.name == pool), 0)

    def problem(self, cluster: str) -> ClusterProblem | None:
        """What keeps the operator from its work there; None: nothing, or it has not been contacted yet."""
        seen = self.seen.get(cluster)
        if seen is None:
            return None
        if seen.state != ClusterState.READY:
            return ClusterProblem(_REASONS[seen.state], one_line(seen.message))
        other = self._duplicate_of(cluster)
        if other is not None:
            text = f"Secrets {other} and {cluster} lead to the same namespace of the same cluster"
            return ClusterProblem(Reason.DUPLICATE_CLUSTER, text)
        before = self.moved_from(cluster)
        if not before:
            return None
        text = (
            f"its Secret leads to {seen.place} now, and the job's objects are in {before}: put the earlier kubeconfig "
            f"back, or annotate the job with {GIVE_UP_PLACE}={before} to leave them there"
        )
        return ClusterProblem(Reason.CLUSTER_MOVED, text)

    def credentials_problem(self, cluster: str) -> ClusterProblem | None:
        """Credentials that are gone soon: of a Secret that is being deleted, or that run out and are not renewed."""
        if cluster in self.seen and self.seen[cluster].deleted:
            secret = cluster.partition("/")[0]
            text = f"Secret {secret} is deleted, and kept by its finalizer {IN_USE} and used while a job names it"
            return ClusterProblem(Reason.KUBECONFIG_DELETED, text)
        expiring = self.seen[cluster].expiring if cluster in self.seen else None
        if expiring is None:
            return None
        ahead = min(CREDENTIALS_WARNING, (expiring.expires - expiring.issued) / _OF_LIFE)
        if expiring.expires - self.now > ahead:
            return None
        told = f"the {expiring.what} runs out at {expiring.expires:%Y-%m-%dT%H:%M:%SZ}"
        if expiring.what == Credential.TOKEN:
            return ClusterProblem(Reason.CREDENTIALS_EXPIRING, f"{told}, and the operator may not renew it")
        return ClusterProblem(Reason.CREDENTIALS_EXPIRING, f"{told}, and only a new kubeconfig replaces it")

    def located(self, region: RegionStatus) -> RegionStatus:
        """A region's status with its cluster and what is wrong with it."""
        cluster = self.regions.get(region.name, HOME)
        if cluster == HOME:
            return region
        earlier = self.before.get(region.name)
        if cluster not in self.seen and earlier is not None:
            # The operator has just started. Until it knows more, the status stays.
            kept = {name: getattr(earlier, name) for name in ("reason", "message", "since", "last_seen_time", "place")}
            return region.model_copy(update={"cluster": cluster, **kept})
        problem = self.problem(cluster) or self.credentials_problem(cluster)
        said = {} if problem is None else {"reason": problem.reason.value, "message": problem.message}
        times = {"since": self.since(cluster), "last_seen_time": self.last_seen(cluster)}
        place = self.seen[cluster].place if self.answers(cluster) else self._place_before(cluster)
        return region.model_copy(update={"cluster": cluster, **said, **times, "place": place or None})

    @property
    def _remembered(self) -> tuple[RegionStatus | FormerCluster, ...]:
        return (*self.before.values(), *self.former)

    def _told(self, cluster: str) -> tuple[RegionStatus | FormerCluster, ...]:
        """What the status as it was last written says of a cluster."""
        return tuple(one for one in self._remembered if one.cluster == cluster)

    def _place_before(self, cluster: str) -> str:
        """The place of the job's objects there by that status; empty: there are none, or they are given up."""
        return next((one.place for one in self._told(cluster) if one.place not in (None, self.given_up)), None) or ""

    def _is_left(self, cluster: str) -> bool:
        """Whether no object of the job is there, or another cluster that leads to the same place has them."""
        if self.is_duplicate(cluster):
            return True
        whole = self.answers(cluster) and KINDS.isdisjoint(self.seen[cluster].unlisted)
        return whole and cluster not in self.inhabited

    def _former(self, cluster: str) -> FormerCluster:
        earlier = next((one for one in self.former if one.cluster == cluster), None)
        if cluster not in self.seen and earlier is not None:
            return earlier
        problem = self.problem(cluster)
        return FormerCluster(
            cluster=cluster,
            place=self._place_before(cluster),
            reason=None if problem is None else problem.reason.value,
            message=None if problem is None else problem.message,
            since=self.since(cluster),
            last_seen_time=self.last_seen(cluster),
        )

    def _duplicate_of(self, cluster: str) -> str | None:
        """The first other cluster that leads to the same place."""
        same = self.seen[cluster].same_as
        for other in self.others:
            if other == cluster or not same:
                return None
            told = self.seen[other].same_as if other in self.seen else ""
            # Of three, two name the same other.
            if other == same or told in (cluster, same):
                return other
        return None


def with_same_places(seen: Mapping[str, ClusterSeen], children: Mapping[ChildKey, Object]) -> dict[str, ClusterSeen]:
    """``seen``, where each of several clusters that show an object with the same uid says so (`ClusterSeen.same_as`).

    Their kubeconfigs lead to one namespace of one cluster by different addresses. Without this, each would be taken for
    a cluster in which the objects of the other one's regions are not wanted. API servers make uids at random. The owner
    of one cluster does not know those in another, so cannot pretend this.
    """
    by_uid: dict[str, set[str]] = {}
    for key, live in children.items():
        uid = live["metadata"].get("uid")
        if key.cluster in seen and isinstance(uid, str) and uid:
            by_uid.setdefault(uid, set()).add(key.cluster)
    found = dict(seen)
    for several in by_uid.values():
        for name in several if len(several) > 1 else ():
            if not found[name].same_as:
                found[name] = replace(found[name], same_as=min(several - {name}))
    return found


def said_regions(job: Object) -> dict[str, str]:
    """The cluster of every region that can be read, from a job whose spec may be invalid."""
    found = {}
    for region in items_of(mapping(job.get("spec")).get("regions")):
        secret = mapping(mapping(mapping(region).get("cluster")).get("kubeconfigSecretRef"))
        name, key = secret.get("name"), secret.get("key", DEFAULT_KEY)
        where = cluster_name(name, key) if isinstance(name, str) and isinstance(key, str) else HOME
        if isinstance(mapping(region).get("name"), str):
            found[region["name"]] = where
    return found
