"""The remote clusters that jobs name: each is followed from the first job that names it to the last one.

Nothing at home waits for any of them. A cluster that has not answered yet is a value like one that never will. Only so
many are followed at once: `slots` chooses among those whose Secret exists.
"""

import asyncio
import hashlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from diloco.runtime.backoff import Backoff
from diloco_operator import labels
from diloco_operator.api_server.api import Api, Selection
from diloco_operator.api_server.cache import Cache, GroupKey, ObjectKey
from diloco_operator.api_server.errors import ApiError
from diloco_operator.api_server.kinds import JOB, SECRET, Object
from diloco_operator.api_server.requests import RequestHooks
from diloco_operator.api_server.watches import Watch
from diloco_operator.cluster_state import CLUSTER_LABEL, DEFAULT_KEY, IN_USE, ClusterSeen, ClusterState, cluster_name
from diloco_operator.clusters.home import ClusterKey, HomeSecrets
from diloco_operator.clusters.remote import LEAST_SECONDS, MOST_BYTES, UNKNOWN, RemoteCluster
from diloco_operator.clusters.session import PROBE_SECONDS, Holder, Surroundings
from diloco_operator.clusters.slots import MOST_CLUSTERS, Claim, with_slots
from diloco_operator.objects import items_of, mapping, metadata_of
from diloco_operator.shares import Room, Share

_log = logging.getLogger(__name__)
SETTLED_SECONDS: Final = 60.0
"""After this long, what is known of a cluster counts, even if nothing is: its Secret cannot be read, for example."""
_LEASE: Final = "diloco-home"
_DIGEST_LENGTH: Final = 16
_WITHOUT_SLOT: Final = frozenset({ClusterState.KUBECONFIG_UNUSABLE, ClusterState.TOO_MANY})


@dataclass(frozen=True, slots=True)
class HomeSide:
    """What the clusters are given by the process at home."""

    api: Api
    namespaces: tuple[str, ...]
    """Whose Secrets are watched; empty: all."""
    find_id: Callable[[], Awaitable[str]]
    """Awaited for this home's id; raises ApiError."""
    changed: Callable[[GroupKey], None]
    """Called for a job (its namespace and name) after something about one of its clusters changed."""
    hooks: RequestHooks
    """Of requests to the clusters."""
    clock: Callable[[], float]
    now: Callable[[], datetime]
    operator: str
    """This operator at home, which all of its processes are."""
    identity: str
    """This process; random."""
    probe_seconds: float = PROBE_SECONDS
    """Between two questions whether a cluster is there, while it is."""


@dataclass(slots=True)
class _Named:
    key: ClusterKey
    since: float
    """Since when, by the clock."""
    jobs: dict[GroupKey, Claim] = field(default_factory=dict)
    remote: RemoteCluster | None = None
    """None: it has no slot, or this home's id is not known yet."""
    task: asyncio.Task[None] | None = None
    instead: ClusterSeen = UNKNOWN
    """What is said of it while it has no slot."""


class RemoteClusters:
    """All remote clusters in use. Used from one event loop."""

    def __init__(self, home: HomeSide) -> None:
        self._home = home
        self._id = ""
        self._without_id = UNKNOWN
        """What is said of every cluster while it is not known."""
        self._named: dict[tuple[str, str], _Named] = {}
        """By namespace of home and name of the cluster."""
        self._claims: dict[GroupKey, Mapping[ClusterKey, Claim]] = {}
        """By job."""
        self._wanted = asyncio.Event()
        """Set when a job names another cluster."""
        self._due = asyncio.Event()
        """Set if other clusters than before may have a slot."""
        self._ending: set[asyncio.Task[None]] = set()
        self._backoff = Backoff(1.0, 30.0, random.random)
        self._secrets = Cache(CLUSTER_LABEL)
        self._room = Room(MOST_BYTES)
        self._watches = tuple(
            Watch(
                home.api,
                # What is in them is read only where a job names one.
                Selection(SECRET, namespace, labels=CLUSTER_LABEL, metadata_only=True),
                self._secrets,
                self._secret_changed,
                home.clock,
                self._backoff,
                heard=self._due.set,
                keep=_known_of_secret,
            )
            for namespace in home.namespaces or (None,)
        )

    @property
    def home_id(self) -> str:
        """This home's id; empty: not known yet."""
        return self._id

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Of home, whose jobs name clusters; empty: all."""
        return self._home.namespaces

    async def run(self) -> None:
        """Follow the clusters in use until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._find_home())
                group.create_task(self._keep_allotted())
                for watch in self._watches:
                    group.create_task(watch.run())
        finally:
            tasks = [named.task for named in self._named.values() if named.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, *self._ending, return_exceptions=True)

    def use(self, job: GroupKey, claims: Mapping[ClusterKey, Claim]) -> None:
        """Follow these clusters for a job, and no longer those that it named before."""
        before = self._claims.get(job, {})
        if claims == before:
            return
        self._claims[job] = claims
        for key in before.keys() - claims.keys():
            named = self._named[key.namespace, key.name]
            del named.jobs[job]
            if not named.jobs:
                self._end(named)
                del self._named[key.namespace, key.name]
        if not claims:
            del self._claims[job]
        else:
            self._wanted.set()
        for key, claim in claims.items():
            named = self._named.setdefault((key.namespace, key.name), _Named(key, self._home.clock()))
            named.jobs[job] = claim
        self._due.set()

    def seen(self, namespace: str, name: str) -> ClusterSeen:
        """A cluster as last seen."""
        named = self._named.get((namespace, name))
        if named is None:
            return UNKNOWN
        seen = named.instead if named.remote is None else named.remote.seen
        late = not seen.settled and self._home.clock() - named.since >= SETTLED_SECONDS
        return replace(seen, settled=True) if late else seen

    def of_job(self, job: GroupKey, wanted: Iterable[tuple[str, str]]) -> Mapping[str, ClusterSeen]:
        """The clusters that a job names, by name. Where two are the same place, each says so."""
        names = sorted({ClusterKey(job.namespace, secret, key).name for secret, key in wanted})
        found = {name: self.seen(job.namespace, name) for name in names}
        places: dict[tuple[str, str], list[str]] = {}
        for name in names:
            remote = self.handle(job.namespace, name)
            if remote is not None and remote.session is not None:
                places.setdefault(remote.session.config.place, []).append(name)
        for same in places.values():
            for name in same:
                others = [other for other in same if other != name]
                if others:
                    found[name] = replace(found[name], same_as=others[0])
        return found

    def handle(self, namespace: str, name: str) -> RemoteCluster | None:
        """A cluster to read from and write to; None: it is not in use, or not known yet."""
        named = self._named.get((namespace, name))
        return None if named is None else named.remote

    @property
    def used(self) -> dict[ClusterKey, RemoteCluster]:
        """The clusters in use."""
        return {named.key: named.remote for named in self._named.values() if named.remote is not None}

    @property
    def selector(self) -> str:
        """The label selector of this home's objects in other clusters."""
        return labels.text({labels.MANAGED_BY: labels.FIELD_MANAGER, labels.HOME: self._id})

    @property
    def _lease_name(self) -> str:
        told = hashlib.sha256(f"{self._id}/{self._home.operator}".encode()).hexdigest()
        return f"{_LEASE}-{told[:_DIGEST_LENGTH]}"

    def home_version(self) -> int:
        """How far home's store has come, as the watches of its Secrets show; no cluster is used before they have."""
        return max(watch.version for watch in self._watches)

    async def _find_home(self) -> None:
        # Who may not read it needs it for jobs with several clusters only.
        await self._wanted.wait()
        failures = 0
        while True:
            try:
                self._id = await self._home.find_id()
            except ApiError as error:
                failures += 1
                text = f"no other cluster is used until home's id is known: {error}"
                _log.warning("%s; retrying", text)
                self._without_id = ClusterSeen(ClusterState.UNREACHABLE, text)
                self._due.set()
                await asyncio.sleep(self._backoff.seconds(failures))
            else:
                break
        self._due.set()

    async def _keep_allotted(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            self._allot()
            await self._release_unused()
            await asyncio.sleep(LEAST_SECONDS)

    def _allot(self) -> None:
        """Follow the clusters that have a slot, and no others."""
        followed = self.used.keys()
        there = {
            # What is followed keeps its slot while its Secret is replaced.
            named.key: min(named.jobs.values())
            for named in self._named.values()
            if named.key in followed or self._secrets.get(ObjectKey(SECRET.name, *named.key[:2])) is not None
        }
        allotted = with_slots(there, followed)
        for named in self._named.values():
            if named.key in allotted and self._id:
                self._begin(named)
                continue
            self._end(named)
            if named.key not in there:
                instead = self._without_secret(named.key)
            else:
                instead = self._without_id if named.key in allotted else _without_slot(named.key)
            if named.instead != instead:
                named.instead = instead
                self._tell(named)

    async def _release_unused(self) -> None:
        """Let the Secrets be deleted that no job names."""
        named = {key[:2] for key in (named.key for named in self._named.values())}
        for key, secret in self._secrets.everything():
            if (key.namespace, key.name) in named or IN_USE not in metadata_of(secret).get("finalizers", ()):
                continue
            try:
                # Not all jobs may be known yet, and some are another operator's.
                jobs = await self._home.api.items(Selection(JOB, key.namespace))
                if not any(key.name in dict(clusters_named(job)) for job in jobs):
                    await HomeSecrets(self._home.api).release(secret)
            except ApiError as error:
                _log.warning("Secret %s/%s: %s; retrying", key.namespace, key.name, error)

    def _begin(self, named: _Named) -> None:
        if named.remote is not None:
            return
        around = Surroundings(
            name=str(named.key),
            selector=self.selector,
            changed=lambda group: self._home.changed(GroupKey(named.key.namespace, group.value)),
            reported=lambda: self._tell(named),
            now=self._home.now,
            clock=self._home.clock,
            random=random.random,
            holder=Holder(self._lease_name, self._home.identity, self.home_version),
            probe_seconds=self._home.probe_seconds,
        )
        share = Share(self._room, named.key.namespace, named.key)
        named.remote = RemoteCluster(named.key, HomeSecrets(self._home.api), around, self._home.hooks, share)
        named.instead = UNKNOWN
        named.task = asyncio.create_task(named.remote.run())

    def _end(self, named: _Named) -> None:
        task, named.task, named.remote = named.task, None, None
        if task is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _tell(self, named: _Named) -> None:
        for job in sorted(named.jobs):
            self._home.changed(job)

    def _secret_changed(self, group: GroupKey) -> None:
        """Read the Secrets of a namespace again: one of those with a kubeconfig has changed."""
        for key, remote in self.used.items():
            if key.namespace == group.namespace:
                remote.reread()

    def _without_secret(self, key: ClusterKey) -> ClusterSeen:
        watches = (watch for watch in self._watches if watch.selection.namespace in (None, key.namespace))
        if not all(watch.synced.is_set() for watch in watches):
            return UNKNOWN
        text = (
            f"Secret {key.secret}: is not in namespace {key.namespace} with the label {CLUSTER_LABEL}; use `diloco "
            "cluster kubeconfig` to make it"
        )
        return ClusterSeen(ClusterState.KUBECONFIG_UNUSABLE, text)


def _known_of_secret(secret: Object) -> Object:
    """What is read of a Secret's metadata. Anybody may give any number of Secrets the label."""
    metadata, fields = secret["metadata"], ("name", "namespace", "uid", "resourceVersion", "finalizers", "labels")
    kept = {field: metadata[field] for field in fields if field in metadata}
    if "labels" in kept:
        kept["labels"] = {CLUSTER_LABEL: kept["labels"].get(CLUSTER_LABEL, "")}
    return {"metadata": kept}


def _without_slot(key: ClusterKey) -> ClusterSeen:
    text = f"the operator uses at most {MOST_CLUSTERS} other clusters, and none is left for namespace {key.namespace}"
    return ClusterSeen(ClusterState.TOO_MANY, text)


def claims_of(job: Object) -> dict[ClusterKey, Claim]:
    """The clusters of a job, as `clusters_named`."""
    metadata = job["metadata"]
    had = {one.get("cluster") for one in _in_status(job) if one.get("reason") not in _WITHOUT_SLOT}
    found = {}
    for secret, key in clusters_named(job):
        claim = Claim(cluster_name(secret, key) not in had, str(metadata.get("creationTimestamp")))
        found[ClusterKey(metadata["namespace"], secret, key)] = claim
    return found


def clusters_named(job: Object) -> list[tuple[str, str]]:
    """Secret and key of each cluster that a job's regions name, whether or not the rest of the job is valid.

    And of those that they named: until its status has them no longer, something may be left there.
    """
    found = []
    for region in items_of(mapping(job.get("spec")).get("regions")):
        secret = mapping(mapping(mapping(region).get("cluster")).get("kubeconfigSecretRef"))
        if isinstance(secret.get("name"), str):
            found.append((secret["name"], str(secret.get("key") or DEFAULT_KEY)))
    for one in _in_status(job):
        if one.get("place") and isinstance(one.get("cluster"), str):
            name, _, key = one["cluster"].partition("/")
            found.append((name, key or DEFAULT_KEY))
    return list(dict.fromkeys(found))


def _in_status(job: Object) -> list[Mapping[str, Any]]:
    """What a job's status says of regions, and of clusters that no region names any more."""
    status = mapping(job.get("status"))
    return [mapping(one) for field in ("regions", "formerClusters") for one in items_of(status.get(field))]
