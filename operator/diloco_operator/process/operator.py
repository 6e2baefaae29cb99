"""Assembles the operator: lease, caches, workers, other clusters.

Nothing works without the lease, no job is reconciled before its objects are known, and kopf begins to watch jobs only
once their kind exists (kopf looks for it only once).
"""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final, NoReturn

from diloco.runtime.backoff import Backoff
from diloco.runtime.log import about
from diloco.runtime.process.heartbeat import Heartbeat
from diloco_operator import labels
from diloco_operator.api_server.api import Api, Selection
from diloco_operator.api_server.cache import Cache, GroupKey
from diloco_operator.api_server.connection import Connection
from diloco_operator.api_server.errors import ApiError
from diloco_operator.api_server.kinds import CHILDREN, CLUSTER_ROLE_BINDING, JOB, ROLE_BINDING, WORKLOAD, Kind, Object
from diloco_operator.api_server.requests import RequestHooks
from diloco_operator.api_server.watches import Watch
from diloco_operator.clusters.home import home_id
from diloco_operator.clusters.registry import HomeSide, RemoteClusters
from diloco_operator.clusters.sweeper import Sweeper
from diloco_operator.decide.causes.cause import Cause
from diloco_operator.decide.observed import Observed
from diloco_operator.decide.plan import Plan
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.reconcile import needs_pods, reconcile
from diloco_operator.jobs.job_metrics import JobSeen
from diloco_operator.jobs.job_watch import JobWatch
from diloco_operator.jobs.jobs import JobKey, Jobs, is_ours
from diloco_operator.jobs.observe.kueue import Kueue
from diloco_operator.jobs.observe.observer import Observer
from diloco_operator.jobs.observe.places import Places, kept_at_home
from diloco_operator.jobs.observe.syncer import SyncerClient
from diloco_operator.jobs.reconciler import Controller
from diloco_operator.leases.lease import Clocks, Lease, LeaseLostError
from diloco_operator.leases.namespaces import TIMES, Namespaces
from diloco_operator.objects import mapping
from diloco_operator.options import OperatorOptions
from diloco_operator.process.kueue_presence import KueuePresence
from diloco_operator.process.metrics import Metrics
from diloco_operator.process.workers import Pacing, Workers
from diloco_operator.shares import Room, Share, part_of_memory
from diloco_operator.signing import RandomCertificateMaker

_log = logging.getLogger(__name__)
CONCURRENCY: Final = 12
"""Concurrent reconciles; of one namespace 8."""
_CRD_SECONDS: Final = 5.0
_OF_MEMORY: Final = 0.25
"""Of the container's memory: for the objects of jobs that are kept."""
_BYTES: Final = 128 << 20
"""The same, without a limit of the container's memory; those of a thousand jobs take half of it."""
_CROWDED: Final = (
    f"objects with the label {labels.OF_OPERATOR} take more memory than one namespace may have; delete needless ones"
)
_UNKNOWN_SECONDS: Final = 2.0
"""If the objects of a namespace are not all known yet, its jobs are tried again after this long."""


@dataclass(slots=True)
class Operator:
    """What kopf's handlers start, tell of jobs, and stop."""

    options: OperatorOptions
    connection: Connection
    api: Api
    lease: Lease
    fence: Callable[[str], NoReturn]
    """Called with a reason when the lease is lost; ends the process at once."""
    metrics: Metrics
    asker: SyncerClient
    heartbeat: Heartbeat
    jobs: Jobs = field(default_factory=Jobs)
    cache: Cache = field(init=False)
    stage: str | None = "starting"
    """What it waits for; None: it works."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set if the work has failed: then kopf stops too."""
    watches: tuple[Watch, ...] = field(init=False)
    queue_watches: tuple[Watch, ...] = field(init=False)
    """Of Kueue's Workloads. They begin once there is Kueue."""
    kueue: KueuePresence = field(init=False)
    job_watch: JobWatch = field(init=False)
    workers: Workers[JobKey] = field(init=False)
    namespaces: Namespaces = field(init=False)
    clusters: RemoteClusters = field(init=False)
    controller: Controller = field(init=False)
    _assigns_users: bool = False
    _work: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        room = Room(part_of_memory(_OF_MEMORY, _BYTES))
        self.cache = Cache(labels.JOB, lambda namespace: Share(room, namespace, "objects"))
        namespaces = self.options.namespaces or (None,)
        self.watches = tuple(self._watch_of(kind, namespace) for namespace in namespaces for kind in CHILDREN)
        self.kueue = KueuePresence(self.api, self.options.kueue)
        queued = namespaces if self.options.kueue else ()
        self.queue_watches = tuple(self._watch_of(WORKLOAD, namespace) for namespace in queued)
        for watch in self.queue_watches:
            watch.gate, watch.failed = self.kueue.wait, self.kueue.watch_failed
        self.job_watch = JobWatch(
            self.api, self.jobs, self.options.namespaces, self.options.exclude_namespaces, self.job_changed
        )
        kind = ROLE_BINDING if self.options.namespaces else CLUSTER_ROLE_BINDING
        binding = (kind, self.options.binding) if self.options.binding else None
        self.namespaces = Namespaces(
            self.api,
            self.options.name,
            Clocks(utc_now, time.monotonic),
            self._namespace_changed,
            binding,
        )
        self.clusters = RemoteClusters(self._home_side())
        self.controller = Controller(
            api=self.api,
            jobs=self.jobs,
            observer=Observer(
                Places(self.api, self.cache, (*self.watches, *self.queue_watches), self.clusters),
                *(self.asker, time.monotonic, self._needs_pods),
                kueue=Kueue(self.api, time.monotonic, lambda: self.kueue.missing),
            ),
            decide=self._decide,
            now=utc_now,
            identity=self.lease.identity,
            left_behind=self.metrics.left,
            pods_deleted=self.metrics.pods_deleted,
        )
        pacing = Pacing(
            backoff=Backoff(first_seconds=1.0, most_seconds=300.0, random=random.random),
            least_seconds=lambda error: error.retry_after_seconds if isinstance(error, ApiError) else 0.0,
            failed=self._failed,
        )
        self.workers = Workers(self._reconcile, pacing, CONCURRENCY, tenant_of=lambda key: key.namespace)

    async def start(self) -> None:
        """Start all work, once this process holds the lease. Returns when jobs can be watched."""
        self._work = asyncio.create_task(self._run())
        self._work.add_done_callback(lambda _: self.ended.set())
        try:
            await self.lease.acquire()
            await self._wait_for_definition()
        except BaseException:
            await self.stop()
            raise
        self.stage = None

    async def stop(self) -> None:
        """End all work and release the lease.

        Raises:
            Exception: what ended the work before.
        """
        work, self._work = self._work, None
        if work is None:
            return
        failed = work.done()
        work.cancel()
        await asyncio.wait((work,))
        await self.lease.release()
        if failed:
            work.result()

    def job_changed(self, event: str | None, job: Object) -> None:
        """Take in a job from the watch. `event` is the watch event's type; None: it was in a list."""
        if job["metadata"]["namespace"] in self.options.exclude_namespaces:
            return
        key = self.jobs.heard(event, job)
        if event == "DELETED" and not self._jobs_in(key.namespace):
            self.namespaces.leave(key.namespace)
        self.workers.enqueue(key)

    def seen(self) -> Iterator[JobSeen]:
        """The jobs that this process looks after."""
        found = (self.controller.seen(key) for key in self.jobs if self.namespaces.is_own(key.namespace))
        return (one for one in found if one is not None)

    def ages(self) -> dict[str, float]:
        """Seconds since each watch was last known to work."""
        now = time.monotonic()
        return {
            str(watch.selection): float("inf") if watch.heard_at is None else now - watch.heard_at
            for watch in self._all_watches
        }

    def problems(self) -> dict[str, str]:
        """Why watches are not watching."""
        return {str(watch.selection): watch.problem for watch in self._all_watches if watch.problem}

    def refused(self) -> set[str]:
        """Watches that the API server refuses."""
        return {str(watch.selection) for watch in self._all_watches if watch.forbidden}

    def elsewhere(self) -> list[str]:
        """In which namespaces it does not act."""
        namespaces = sorted({key.namespace for key, job in self.jobs.items() if is_ours(job)})
        crowded = (f"not acting in {name}: {_CROWDED}" for name in namespaces if self.cache.lacks(name))
        return [*self.namespaces.held_by_others(), *self.namespaces.problems(), *crowded]

    def standing(self) -> str | None:
        """What it waits for, as text; None: it works."""
        lease = self.lease
        if lease.held:
            return self.stage
        where = f"{lease.namespace}/{lease.name}"
        if lease.error is not None:
            return f"waiting for lease {where}: {lease.error.message}"
        return f"standing by: lease {where} is held by {lease.other}" if lease.other else "starting"

    def stands_by(self) -> bool:
        """Whether waiting is normal: another process holds the lease."""
        return not self.lease.held and bool(self.lease.other) and self.lease.error is None

    async def _run(self) -> None:
        """Watch and reconcile until cancelled, from when the lease is held."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.heartbeat.run())
            await self.lease.acquired.wait()
            group.create_task(self._keep_lease())
            for watch in (*self.watches, *self.queue_watches):
                group.create_task(watch.run())
            group.create_task(self.job_watch.run())
            group.create_task(self.kueue.keep_looking())
            group.create_task(self.namespaces.run())
            group.create_task(self.workers.work())
            group.create_task(self.clusters.run())
            sweeper = Sweeper(self.clusters, self.api, self.metrics.swept, time.monotonic, random.random)
            group.create_task(sweeper.run())

    async def _keep_lease(self) -> None:
        try:
            await self.lease.keep()
        except LeaseLostError as error:
            self.fence(str(error))

    async def _wait_for_definition(self) -> None:
        self.stage = f"waiting: the API server has no {JOB.resource}; install the CustomResourceDefinition"
        while True:
            try:
                if await self.api.serves(JOB):
                    await self.kueue.look()
                    self.job_watch.served.set()
                    self._assigns_users = await self.api.assigns_users()
                    return
                _log.warning("%s", self.stage)
            except ApiError as error:
                _log.warning("%s; retrying", error)
            await asyncio.sleep(_CRD_SECONDS)

    def _watch_of(self, kind: Kind, namespace: str | None) -> Watch:
        return Watch(
            self.api,
            Selection(kind, namespace, labels=labels.OF_OPERATOR),
            self.cache,
            self._child_changed,
            time.monotonic,
            Backoff(first_seconds=1.0, most_seconds=30.0, random=random.random),
            keep=kept_at_home,
            crowded=self._namespace_changed,
        )

    async def _reconcile(self, key: JobKey) -> float | None:
        with about(job=key.name, namespace=key.namespace):
            return await self._reconcile_job(key)

    async def _reconcile_job(self, key: JobKey) -> float | None:
        job = self.jobs.get(key)
        queued = job is not None and bool(mapping(job.get("spec")).get("queue")) and self.kueue.is_there.is_set()
        watches = (*self.watches, *(self.queue_watches if queued else ()))
        if not all(one.synced.is_set() for one in watches if one.selection.namespace in (None, key.namespace)):
            return _UNKNOWN_SECONDS
        if job is not None and is_ours(job):
            acts, blocked = self.namespaces.acts_in(key.namespace), self.namespaces.refused(key.namespace)
            if acts and self.cache.lacks(key.namespace):
                blocked = f"namespace {key.namespace}: {_CROWDED}"
            if blocked:
                return await self.controller.stand_still(
                    key, Cause(Reason.OPERATOR_BLOCKED, blocked), TIMES.renew_seconds
                )
            if not acts:
                return TIMES.renew_seconds
        with self.metrics.reconcile_seconds.time():
            return await self.controller.run(key)

    def _home_side(self) -> HomeSide:
        return HomeSide(
            api=self.api,
            namespaces=self.options.namespaces,
            find_id=lambda: home_id(self.api),
            changed=self._child_changed,
            hooks=RequestHooks(partial(self.metrics.answered, "other"), self.lease.check),
            clock=time.monotonic,
            now=utc_now,
            operator=self.options.name,
            # A restored copy of this cluster may have the very same pod.
            identity=f"{self.lease.identity}_{secrets.token_hex(4)}",
        )

    @property
    def _all_watches(self) -> tuple[Watch, ...]:
        return (*self.watches, *(self.queue_watches if self.kueue.is_there.is_set() else ()), *self.job_watch.watches)

    def _decide(self, job: Object, observed: Observed, now: datetime) -> Plan:
        return reconcile(job, observed, now, self._options_now(), RandomCertificateMaker())

    def _needs_pods(self, job: Object, observed: Observed) -> bool:
        return needs_pods(job, observed, utc_now(), self._options_now())

    def _options_now(self) -> OperatorOptions:
        # The home's id is known some time after the start.
        return replace(self.options, home_id=self.clusters.home_id, assigns_users=self._assigns_users)

    def _child_changed(self, group: GroupKey) -> None:
        key = JobKey(group.namespace, group.value)
        if self.jobs.get(key) is not None:
            self.workers.enqueue(key)

    def _namespace_changed(self, namespace: str) -> None:
        for key in self._jobs_in(namespace):
            self.workers.enqueue(key)

    def _jobs_in(self, namespace: str) -> list[JobKey]:
        return [key for key, job in self.jobs.items() if key.namespace == namespace and is_ours(job)]

    def _failed(self, key: Hashable, error: Exception) -> None:
        self.metrics.failed(error)
        assert isinstance(key, JobKey)
        with about(job=key.name, namespace=key.namespace):
            if isinstance(error, ApiError | LeaseLostError):
                _log.warning("%s: %s; retrying", key, error)
            else:
                _log.error("%s: reconcile failed; retrying", key, exc_info=error)


def utc_now() -> datetime:
    """The time by this machine's clock."""
    return datetime.now(UTC)
