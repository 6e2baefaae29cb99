"""Assembles and runs the operator: lease, watches, workers, probes.

Order matters: nothing works without the lease, nothing is decided before the caches are complete, and kopf is started
only once the kind that it watches exists (kopf looks for it only once).
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from diloco.runtime.backoff import Backoff
from diloco.runtime.heartbeat import Heartbeat
from diloco_operator import labels
from diloco_operator.cluster.api import Api, Selection, is_served
from diloco_operator.cluster.cache import Cache, GroupKey
from diloco_operator.cluster.connection import Connection, login
from diloco_operator.cluster.errors import ApiError
from diloco_operator.cluster.kinds import CHILDREN, JOB, Object
from diloco_operator.cluster.requests import Seams
from diloco_operator.cluster.watches import Watch
from diloco_operator.clusters.home import home_id, new_home_id
from diloco_operator.clusters.registry import Clusters, HomeSide
from diloco_operator.clusters.sweep_one import SweepHome
from diloco_operator.clusters.sweeper import Sweeper
from diloco_operator.controller import Controller
from diloco_operator.decide.reconcile import reconcile
from diloco_operator.health import Health
from diloco_operator.lease import Clocks, Lease, LeaseLostError
from diloco_operator.metrics import Gauges, Metrics
from diloco_operator.observe.job_watch import JobWatch
from diloco_operator.observe.jobs import JobKey, JobProbe, Jobs
from diloco_operator.observe.observer import Observer
from diloco_operator.observe.places import Places
from diloco_operator.observe.syncer import SyncerClient, new_session
from diloco_operator.options import OperatorOptions
from diloco_operator.signing import RandomCertificateMaker
from diloco_operator.workers import Pacing, Workers

_log = logging.getLogger(__name__)
CONCURRENCY: Final = 8
"""Concurrent reconciles."""
PROBE_SECONDS: Final = (0.0, 2.0, 30.0)
"""Before the first, the second and every later comparison of the watch of jobs with a list."""
_CRD_SECONDS: Final = 5.0
_UNKNOWN_SECONDS: Final = 2.0
"""If the objects of a namespace are not all known yet, its jobs are tried again after this long."""


@dataclass(slots=True)
class _Place:
    """One namespace whose jobs are reconciled, or all, with its watches. Deleting one does not affect the others."""

    namespace: str | None
    watches: tuple[Watch, ...]
    probe: JobProbe
    job_watch: JobWatch

    @property
    def whole(self) -> bool:
        """Whether all its objects are known."""
        return all(watch.synced.is_set() for watch in self.watches)

    @property
    def gone(self) -> bool:
        """Whether the namespace was deleted, or the permission to read it withdrawn."""
        return self.namespace is not None and all(watch.shut_out for watch in self.watches)

    async def told(self) -> None:
        """Wait until all its objects are known."""
        for watch in self.watches:
            await watch.synced.wait()


@dataclass(slots=True)
class _Parts:
    """Everything that runs while the lease is held."""

    options: OperatorOptions
    api: Api
    metrics: Metrics
    asker: SyncerClient
    connection: Connection
    identity: str
    before_write: Callable[[], None]
    """Raises if this process may no longer write."""
    jobs: Jobs = field(default_factory=Jobs)
    cache: Cache = field(default_factory=lambda: Cache(labels.JOB))
    watches: tuple[Watch, ...] = ()
    stage: str | None = "starting"
    workers: Workers[JobKey] = field(init=False)
    clusters: Clusters = field(init=False)
    sweeper: Sweeper = field(init=False)
    places: tuple[_Place, ...] = field(init=False)

    def __post_init__(self) -> None:
        backoff = Backoff(first_seconds=1.0, most_seconds=30.0, random=random.random)
        self.places = tuple(self._place(namespace, backoff) for namespace in self.options.namespaces or (None,))
        self.watches = tuple(watch for place in self.places for watch in place.watches)
        self.clusters = Clusters(self._home_side())
        swept = SweepHome(self.api, self._job_uids, self.options.namespaces, self.metrics.swept)
        self.sweeper = Sweeper(self.clusters, swept, time.monotonic, random.random)
        controller = Controller(
            api=self.api,
            jobs=self.jobs,
            observer=Observer(Places(self.api, self.cache, self.watches, self.clusters), self.asker, time.monotonic),
            decide=self._decide,
            now=_now,
            identity=self.identity,
            left_behind=self.metrics.left,
            pods_deleted=self.metrics.pods_deleted,
        )

        async def timed(key: JobKey) -> float | None:
            if not self._knows(key.namespace):
                return _UNKNOWN_SECONDS
            with self.metrics.reconcile_seconds.time():
                return await controller.run(key)

        pacing = Pacing(
            backoff=Backoff(first_seconds=1.0, most_seconds=300.0, random=random.random),
            least_seconds=lambda error: error.retry_after_seconds if isinstance(error, ApiError) else 0.0,
            failed=self._failed,
        )
        self.workers = Workers(timed, pacing, CONCURRENCY)

    def _place(self, namespace: str | None, backoff: Backoff) -> _Place:
        watches = tuple(
            Watch(
                self.api,
                Selection(kind, namespace, labels=labels.OF_OPERATOR),
                self.cache,
                self._child_changed,
                time.monotonic,
                backoff,
            )
            for kind in CHILDREN
        )
        named = () if namespace is None else (namespace,)
        return _Place(
            namespace,
            watches,
            JobProbe(self.api, self.jobs, named, self._wished, time.monotonic),
            JobWatch(lambda: login(self.connection, _now), named, self._job_seen, backoff),
        )

    def _home_side(self) -> HomeSide:
        options, lease_name = self.options, self.options.lease_name
        return HomeSide(
            api=self.api,
            namespaces=options.namespaces,
            find_id=lambda: home_id(self.api, options.operator_namespace, f"{lease_name}-home", new_home_id),
            changed=self._child_changed,
            seams=Seams(self.metrics.answered_elsewhere, self.before_write),
            clock=time.monotonic,
            now=_now,
        )

    def _job_uids(self) -> set[str] | None:
        """The uids of all jobs, without those of namespaces that are gone; None: not all are known yet."""
        there = [place for place in self.places if not place.gone]
        if not there or any(place.probe.agreed_at is None for place in there):
            return None
        return {str(job["metadata"]["uid"]) for job in map(self.jobs.get, self.jobs) if job is not None}

    def _wished(self, key: JobKey) -> None:
        self.workers.enqueue(key)

    def _knows(self, namespace: str) -> bool:
        return any(place.whole for place in self.places if place.namespace in (None, namespace))

    async def run(self) -> None:
        """Watch and reconcile until cancelled."""
        async with asyncio.TaskGroup() as group:
            for watch in self.watches:
                group.create_task(watch.run())
            self.stage = "starting: listing the objects of jobs"
            # One namespace is enough: jobs of the others wait until theirs is known, and one may have been deleted.
            await _first(place.told() for place in self.places)
            await self._wait_for_definition()
            self.stage = None
            group.create_task(self.workers.work())
            group.create_task(self.clusters.run())
            group.create_task(self.sweeper.run())
            for place in self.places:
                group.create_task(place.job_watch.run())
                group.create_task(self._probe(place))

    def ages(self) -> dict[str, float]:
        """Seconds since each watch was last known to work."""
        now, ages = time.monotonic(), dict[str, float]()
        # Namespaces that are gone have no watches to report on; if all are gone, that is a problem of the operator.
        there = [place for place in self.places if not place.gone] or self.places
        for place in there:
            ages |= {_name(watch.selection): _age(now, watch.heard_at) for watch in place.watches}
            ages[_name(Selection(JOB, place.namespace))] = _age(now, place.probe.agreed_at)
        return ages

    def gone(self) -> list[str]:
        """Namespaces whose jobs are not reconciled, because they or the permission to read them are gone."""
        return [str(place.namespace) for place in self.places if place.gone]

    def problems(self) -> dict[str, str]:
        """Why watches are not watching."""
        problems = {_name(watch.selection): watch.problem for watch in self.watches}
        problems |= {_name(Selection(JOB, place.namespace)): place.job_watch.problem for place in self.places}
        return {name: problem for name, problem in problems.items() if problem}

    async def _wait_for_definition(self) -> None:
        self.stage = f"waiting: the API server has no {JOB.resource}; install the CustomResourceDefinition"
        while True:
            try:
                # Only if everything could be listed just now.
                namespace = next(place.namespace for place in self.places if place.whole)
                if await is_served(self.api, JOB, namespace):
                    return
                _log.warning("%s", self.stage)
            except ApiError as error:
                _log.warning("%s; retrying", error)
            await asyncio.sleep(_CRD_SECONDS)

    async def _probe(self, place: _Place) -> None:
        waits = iter(PROBE_SECONDS[:-1])
        while True:
            await asyncio.sleep(next(waits, PROBE_SECONDS[-1]))
            was_deaf = place.probe.deaf
            try:
                await place.probe.probe()
            except ApiError as error:
                _log.warning("%s; retrying", error)
                continue
            if was_deaf and place.probe.deaf:
                place.job_watch.restart()

    def _decide(self, job: Object, observed: Any, now: datetime) -> Any:
        # The home's id is known some time after the start.
        options = replace(self.options, home_id=self.clusters.home_id)
        return reconcile(job, observed, now, options, RandomCertificateMaker())

    def _child_changed(self, group: GroupKey) -> None:
        key = JobKey(group.namespace, group.value)
        if self.jobs.get(key) is not None:
            self.workers.enqueue(key)

    def _job_seen(self, event: str | None, job: Object) -> None:
        self.workers.enqueue(self.jobs.heard(event, job))

    def _failed(self, key: Hashable, error: Exception) -> None:
        self.metrics.failed(error)
        if isinstance(error, ApiError | LeaseLostError):
            _log.warning("%s: %s; retrying", key, error)
        else:
            _log.error("%s: reconcile failed; retrying", key, exc_info=error)


async def operate(
    options: OperatorOptions,
    connection: Connection,
    identity: str,
    stop: asyncio.Event,
    fence: Callable[[str], NoReturn],
) -> None:
    """Run the operator until `stop` is set.

    Args:
        options: the operator's settings.
        connection: the API server.
        identity: of this process, never used by another one.
        stop: set to end all work and release the lease.
        fence: called with a reason when the lease is lost; ends the process at once.

    Raises:
        BadAddressError: the health address cannot be listened at.
    """
    metrics, heartbeat = Metrics(), Heartbeat()
    health = Health(metrics.registry, heartbeat)
    async with (
        health.served(options.health_address) as port,
        connection.open() as client,
        new_session() as session,
    ):
        _log.info("%s: healthz, readyz and metrics on port %d; cluster of %s", identity, port, connection.described)
        lease = Lease(
            Api(client, labels.FIELD_MANAGER, Seams(metrics.answered)),
            options.operator_namespace,
            options.lease_name,
            identity,
            Clocks(_now, time.monotonic),
        )
        api = Api(client, labels.FIELD_MANAGER, Seams(metrics.answered, lease.check))
        parts = _Parts(options, api, metrics, SyncerClient(session), connection, identity, lease.check)
        _connect_health(health, parts, lease)
        metrics.show(
            Gauges(
                queue_depth=lambda: parts.workers.depth,
                jobs=parts.jobs.phases,
                watch_ages=parts.ages,
                lease_held=lambda: lease.held,
                loop_lag_seconds=lambda: heartbeat.lag_seconds,
            )
        )
        try:
            await _until(stop, _work(lease, parts, heartbeat, fence))
        finally:
            await lease.release()


async def _work(lease: Lease, parts: _Parts, heartbeat: Heartbeat, fence: Callable[[str], NoReturn]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(heartbeat.run())
        await lease.acquire()
        group.create_task(_keep(lease, fence))
        group.create_task(parts.run())


async def _keep(lease: Lease, fence: Callable[[str], NoReturn]) -> None:
    try:
        await lease.keep()
    except LeaseLostError as error:
        fence(str(error))


async def _until(stop: asyncio.Event, work: Any) -> None:
    """Run `work` until `stop` is set; raises what `work` raises."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        ended = working.done()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            if ended:
                await working
            else:
                await asyncio.wait((working,))


def _connect_health(health: Health, parts: _Parts, lease: Lease) -> None:
    def standing() -> str | None:
        if lease.held:
            return parts.stage
        place = f"{lease.namespace}/{lease.name}"
        if lease.problem:
            return f"waiting for lease {place}: {lease.problem}"
        return f"standing by: lease {place} is held by {lease.other}" if lease.other else "starting"

    health.standing = standing
    health.ready_while_waiting = lambda: not lease.held and bool(lease.other) and not lease.problem
    health.watch_ages, health.watch_problems, health.gone = parts.ages, parts.problems, parts.gone


def _now() -> datetime:
    return datetime.now(UTC)


async def _first(waits: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for the first of them, and cancel the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _name(selection: Selection) -> str:
    return (
        selection.kind.resource
        if selection.namespace is None
        else f"{selection.kind.resource} in {selection.namespace}"
    )


def _age(now: float, heard_at: float | None) -> float:
    return float("inf") if heard_at is None else now - heard_at
