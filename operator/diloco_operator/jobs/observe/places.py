"""Where a job's objects are: at home, and in the other clusters that its regions name.

What is 'ours' differs: at home an owner reference says it, and none leads from one cluster to another.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from diloco_operator import labels
from diloco_operator.api_server.api import Api
from diloco_operator.api_server.cache import Cache, GroupKey, ObjectKey
from diloco_operator.api_server.errors import ApiError
from diloco_operator.api_server.kinds import CLAIM, JOB, WORKLOAD, Object
from diloco_operator.api_server.watches import Watch
from diloco_operator.cluster_state import ClusterSeen
from diloco_operator.clusters.registry import RemoteClusters, claims_of, clusters_named
from diloco_operator.decide.observed import ChildKey
from diloco_operator.jobs.jobs import JobKey, key_of
from diloco_operator.objects import items_of, mapping


@dataclass(frozen=True, slots=True)
class JobsCluster:
    """One cluster, as far as one job is concerned."""

    cluster: str
    """Its name; empty: home."""
    api: Api
    cache: Cache
    watches: tuple[Watch, ...]
    namespace: str
    """Of the job's objects there."""
    owns: Callable[[Object], bool]
    """Whether an object there is the job's."""
    failed: Callable[[ApiError], None]
    """Takes in that a request failed."""

    def known(self, child: ChildKey) -> Object | None:
        """A child as last seen; None: none was seen."""
        return self.cache.get(ObjectKey(child.kind, self.namespace, child.name))


@dataclass(frozen=True, slots=True)
class Places:
    """All clusters."""

    api: Api
    """Home's."""
    cache: Cache
    watches: tuple[Watch, ...]
    clusters: RemoteClusters | None = None
    """The others; None: none are used."""

    def use(self, key: JobKey, job: Object | None) -> None:
        """Follow the clusters that a job names; None: there is no such job any more."""
        if self.clusters is not None:
            self.clusters.use(GroupKey(*key), {} if job is None else claims_of(job))

    def seen(self, job: Object) -> Mapping[str, ClusterSeen]:
        """The other clusters that a job names, by name."""
        return {} if self.clusters is None else self.clusters.of_job(GroupKey(*key_of(job)), clusters_named(job))

    def of(self, key: JobKey, uid: str, cluster: str) -> JobsCluster | None:
        """A place to write to; None: it takes no writes now."""
        if not cluster:
            return self._home(key, uid)
        seen = None if self.clusters is None else self.clusters.seen(key.namespace, cluster)
        return self._other(key, uid, cluster) if seen is not None and seen.settled and seen.takes_writes else None

    def children(self, job: Object) -> Iterator[tuple[ChildKey, Object, bool]]:
        """Every object with the job's label, wherever it is, as last seen, and whether it is the job's."""
        key, uid = key_of(job), job["metadata"]["uid"]
        for place in (self._home(key, uid), *self._others(job)):
            for known, item in place.cache.group(GroupKey(place.namespace, key.name)):
                yield ChildKey(known.kind, known.name, place.cluster), item, place.owns(item)

    def answering(self, job: Object) -> Iterator[JobsCluster]:
        """Home, and every other cluster of the job that answers now."""
        key, uid = key_of(job), job["metadata"]["uid"]
        places = (self.of(key, uid, cluster) for cluster in ("", *self.seen(job)))
        return (place for place in places if place is not None)

    def _home(self, key: JobKey, uid: str) -> JobsCluster:
        def owns(item: Object) -> bool:
            return is_owned(item, uid) or labels.is_retained(item["metadata"], uid)

        return JobsCluster("", self.api, self.cache, self.watches, key.namespace, owns, _ignored)

    def _others(self, job: Object) -> Iterator[JobsCluster]:
        for name in self.seen(job):
            place = self._other(key_of(job), job["metadata"]["uid"], name)
            if place is not None:
                yield place

    def _other(self, key: JobKey, uid: str, name: str) -> JobsCluster | None:
        remote = None if self.clusters is None else self.clusters.handle(key.namespace, name)
        if self.clusters is None or remote is None or remote.session is None:
            return None
        session = remote.session

        def owns(item: Object) -> bool:
            return labels.belongs(item["metadata"].get("labels"), uid)

        namespace = session.config.namespace
        return JobsCluster(name, session.api, session.cache, session.watches, namespace, owns, remote.failed)


def is_owned(item: Object, uid: str) -> bool:
    """Whether the object is controlled by the job with this uid, at home."""
    owners = item["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == uid and owner.get("controller") for owner in owners)


def kept_at_home(item: Object) -> Object | None:
    """What is kept of an object at home that has the operator's label, which anybody may give to anything.

    Nothing of one that no job controls, but for a claim that an earlier job retained: whether a name that a job needs
    is taken is asked when it is needed. Of the others, what decisions read.
    """
    metadata = item["metadata"]
    owners = metadata.get("ownerReferences") or ()
    of_job = any(
        one.get("controller") and (one["apiVersion"], one["kind"]) == (JOB.api_version, JOB.name) for one in owners
    )
    if not of_job and not (item["kind"] == CLAIM.name and labels.is_retained(metadata)):
        return None
    return slim({field: value for field, value in item.items() if field != "binaryData"})


def slim(item: Object) -> Object:
    """An object without what no decision reads. A job may have ten thousand Workloads, most of each a pod template."""
    if item["kind"] != WORKLOAD.name:
        return item
    spec, status = mapping(item.get("spec")), mapping(item.get("status"))
    sets = [_some(one, "name", "count") for one in items_of(spec.get("podSets"))]
    read = _some(status, "conditions")
    if assignments := items_of(mapping(status.get("admission")).get("podSetAssignments")):
        read["admission"] = {"podSetAssignments": [_some(one, "name", "flavors") for one in assignments]}
    if checks := [_some(one, "podSetUpdates") for one in items_of(status.get("admissionChecks"))]:
        read["admissionChecks"] = checks
    return {**_some(item, "apiVersion", "kind", "metadata"), "spec": {"podSets": sets}, "status": read}


def _some(item: object, *fields: str) -> Object:
    return {field: value for field, value in mapping(item).items() if field in fields}


def _ignored(_: ApiError) -> None:
    pass
