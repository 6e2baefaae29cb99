"""The remote clusters that jobs name: each is followed from the first job that names it to the last one.

Nothing at home waits for any of them. A cluster that has not answered yet is a value like one that never will.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from diloco.runtime.backoff import Backoff
from diloco_operator import labels
from diloco_operator.api_server.api import Api, Selection
from diloco_operator.api_server.cache import Cache, GroupKey
from diloco_operator.api_server.errors import ApiError
from diloco_operator.api_server.kinds import SECRET, Object
from diloco_operator.api_server.requests import RequestHooks
from diloco_operator.api_server.watches import Watch
from diloco_operator.clusters.home import BadHomeError, ClusterKey, HomeSecrets
from diloco_operator.clusters.remote import UNKNOWN, RemoteCluster
from diloco_operator.clusters.session import PROBE_SECONDS, Surroundings
from diloco_operator.clusters.state import CLUSTER_LABEL, DEFAULT_KEY, ClusterSeen, ClusterState
from diloco_operator.objects import items_of, mapping

_log = logging.getLogger(__name__)
MOST_CLUSTERS: Final = 100
"""Each has a connection for each of its watches, and with too many of them home itself would get none."""
SETTLED_SECONDS: Final = 60.0
"""After this long, what is known of a cluster counts, even if nothing is: its Secret cannot be read, for example."""
TOO_MANY: Final = ClusterSeen(
    ClusterState.UNREACHABLE, f"{MOST_CLUSTERS} other clusters are in use already, which is the most"
)


@dataclass(frozen=True, slots=True)
class HomeSide:
    """What the clusters are given by the process at home."""

    api: Api
    namespaces: tuple[str, ...]
    """Whose Secrets are watched; empty: all."""
    find_id: Callable[[], Awaitable[str]]
    """Awaited for this home's id; raises ApiError or BadHomeError."""
    changed: Callable[[GroupKey], None]
    """Called for a job (its namespace and name) after something about one of its clusters changed."""
    hooks: RequestHooks
    """Of requests to the clusters."""
    clock: Callable[[], float]
    now: Callable[[], datetime]
    probe_seconds: float = PROBE_SECONDS
    """Between two questions whether a cluster is there, while it is."""


@dataclass(slots=True)
class _Used:
    key: ClusterKey
    jobs: set[GroupKey] = field(default_factory=set)
    remote: RemoteCluster | None = None
    """None: this home's id is not known yet."""
    task: asyncio.Task[None] | None = None
    since: float = 0.0
    """Since when, by the clock."""


class RemoteClusters:
    """All remote clusters in use. Used from one event loop."""

    def __init__(self, home: HomeSide) -> None:
        self._home = home
        self._id = ""
        self._used: dict[tuple[str, str], _Used] = {}
        """By namespace of home and name of the cluster."""
        self._ending: set[asyncio.Task[None]] = set()
        self._backoff = Backoff(1.0, 30.0, random.random)
        secrets = Cache(CLUSTER_LABEL)
        self._watches = tuple(
            Watch(
                home.api,
                # What is in them is read only where a job names one.
                Selection(SECRET, namespace, labels=CLUSTER_LABEL, metadata_only=True),
                secrets,
                self._secret_changed,
                home.clock,
                self._backoff,
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
                for watch in self._watches:
                    group.create_task(watch.run())
        finally:
            tasks = [used.task for used in self._used.values() if used.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, *self._ending, return_exceptions=True)

    def use(self, job: GroupKey, wanted: Iterable[tuple[str, str]]) -> None:
        """Follow these clusters for a job (Secret and key of each), and no longer those that it named before."""
        keys = {ClusterKey(job.namespace, secret, key) for secret, key in wanted}
        names = {(key.namespace, key.name) for key in keys}
        for at, used in list(self._used.items()):
            if job in used.jobs and at not in names:
                used.jobs.discard(job)
                if not used.jobs:
                    self._end(at)
        for key in sorted(keys):
            at = (key.namespace, key.name)
            if at not in self._used and len(self._used) >= MOST_CLUSTERS:
                continue
            used = self._used.setdefault(at, _Used(key, since=self._home.clock()))
            used.jobs.add(job)
            self._begin(used)

    def seen(self, namespace: str, name: str) -> ClusterSeen:
        """A cluster as last seen."""
        used = self._used.get((namespace, name))
        if used is None:
            return TOO_MANY if len(self._used) >= MOST_CLUSTERS else UNKNOWN
        seen = UNKNOWN if used.remote is None else used.remote.seen
        late = not seen.settled and self._home.clock() - used.since >= SETTLED_SECONDS
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
        used = self._used.get((namespace, name))
        return None if used is None else used.remote

    @property
    def used(self) -> dict[ClusterKey, RemoteCluster]:
        """The clusters in use."""
        return {used.key: used.remote for used in self._used.values() if used.remote is not None}

    @property
    def selector(self) -> str:
        """The label selector of this home's objects in other clusters."""
        return labels.text({labels.MANAGED_BY: labels.FIELD_MANAGER, labels.HOME: self._id})

    async def _find_home(self) -> None:
        failures = 0
        while True:
            try:
                self._id = await self._home.find_id()
            except (ApiError, BadHomeError) as error:
                failures += 1
                _log.warning("%s; no other cluster is used until then; retrying", error)
                await asyncio.sleep(self._backoff.seconds(failures))
            else:
                break
        for used in self._used.values():
            self._begin(used)

    def _begin(self, used: _Used) -> None:
        if not self._id or used.remote is not None:
            return
        around = Surroundings(
            name=str(used.key),
            selector=self.selector,
            changed=lambda group: self._home.changed(GroupKey(used.key.namespace, group.value)),
            reported=lambda: self._tell(used),
            now=self._home.now,
            clock=self._home.clock,
            random=random.random,
            probe_seconds=self._home.probe_seconds,
        )
        used.remote = RemoteCluster(used.key, HomeSecrets(self._home.api), around, self._home.hooks)
        used.task = asyncio.create_task(used.remote.run())

    def _end(self, at: tuple[str, str]) -> None:
        task = self._used.pop(at).task
        if task is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _tell(self, used: _Used) -> None:
        for job in sorted(used.jobs):
            self._home.changed(job)

    def _secret_changed(self, group: GroupKey) -> None:
        """Read the Secrets of a namespace again: one of those with a kubeconfig has changed."""
        for used in self._used.values():
            if used.key.namespace == group.namespace and used.remote is not None:
                used.remote.reread()


def clusters_named(job: Object) -> list[tuple[str, str]]:
    """Secret and key of each cluster that a job's regions name, whether or not the rest of the job is valid."""
    found = []
    for region in items_of(mapping(job.get("spec")).get("regions")):
        secret = mapping(mapping(mapping(region).get("cluster")).get("kubeconfigSecretRef"))
        if isinstance(secret.get("name"), str):
            found.append((secret["name"], str(secret.get("key") or DEFAULT_KEY)))
    return found
