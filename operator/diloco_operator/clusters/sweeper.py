"""Has every cluster swept that may hold something of jobs that are gone: when it comes back, and now and then.

A cluster in use is swept from what is known of it, at no request. One that no job names any more, but whose Secret is
still there, is visited: one at a time, and no namespace of home again before the others had their turn.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from diloco.runtime.backoff import Backoff
from diloco_operator.cluster.cache import GroupKey
from diloco_operator.cluster.errors import ApiError
from diloco_operator.cluster.kinds import Object
from diloco_operator.clusters.home import ClusterKey
from diloco_operator.clusters.kubeconfig import Kubeconfig, KubeconfigError
from diloco_operator.clusters.registry import Clusters
from diloco_operator.clusters.remote import RemoteCluster
from diloco_operator.clusters.session import Session
from diloco_operator.clusters.sweep_one import Outcome, SweepHome, SweptPlace, sweep

_log = logging.getLogger(__name__)
EVERY_SECONDS: Final = 600.0
"""Between two sweeps of a cluster, on average."""
LOOK_SECONDS: Final = 5.0
"""Between two looks at which clusters are due."""
VISIT_SECONDS: Final = 120.0
"""The longest that a cluster is visited: the others wait."""
RETRY_SECONDS: Final = 30.0
"""Before a failed sweep is tried again, the first time."""


@dataclass(slots=True)
class _Due:
    """When something is swept next."""

    at: float
    running: bool = False
    failures: int = 0
    problem: str = ""
    """Why the last sweep failed, as it was logged."""
    met: tuple[Kubeconfig, int] | None = None
    """The kubeconfig that was last looked at, and how often its server had come back."""


@dataclass(slots=True)
class Sweeper:
    """Sweeps clusters. Used from one event loop."""

    clusters: Clusters
    home: SweepHome
    clock: Callable[[], float]
    """Seconds, monotonic."""
    random: Callable[[], float]
    """Evenly from 0 to 1."""
    look_seconds: float = LOOK_SECONDS
    every_seconds: float = EVERY_SECONDS
    _used: dict[ClusterKey, _Due] = field(default_factory=dict)
    _secrets: dict[GroupKey, _Due] = field(default_factory=dict)
    _visited_at: dict[str, float] = field(default_factory=dict)
    """By namespace of home."""
    _visit: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Sweep until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                if self.clusters.home_id and self.home.job_uids() is not None:
                    self._start_used(group)
                    self._start_visit(group)
                await asyncio.sleep(self.look_seconds)

    def _start_used(self, group: asyncio.TaskGroup) -> None:
        now, used = self.clock(), self.clusters.used
        for key in self._used.keys() - used.keys():
            # The job that named it last may have left something there.
            self._secrets[GroupKey(key.namespace, key.secret)] = _Due(now)
        self._used = {key: self._used.get(key, _Due(now)) for key in used}
        for key, due in self._used.items():
            session = used[key].newest
            met = None if session is None else (session.config, session.returns)
            # It is swept as soon as it is back, even if it was away between two looks.
            known = _is_known(session)
            if not known or due.met != met:
                due.at, due.met = now, met
            if known and due.at <= now and not due.running:
                due.running = True
                group.create_task(self._settled(str(key), due, self._sweep_used(key, used[key])))

    def _start_visit(self, group: asyncio.TaskGroup) -> None:
        now, labelled = self.clock(), self.clusters.labelled
        self._secrets = {secret: self._secrets.get(secret, _Due(now)) for secret in labelled}
        namespaces = {secret.namespace for secret in labelled}
        self._visited_at = {name: at for name, at in self._visited_at.items() if name in namespaces}
        due = [secret for secret, one in self._secrets.items() if one.at <= now]
        if not due or (self._visit is not None and not self._visit.done()):
            return
        secret = min(due, key=lambda one: (self._visited_at.get(one.namespace, -1.0), self._secrets[one].at, one))
        self._visited_at[secret.namespace] = now
        name = f"{secret.namespace}/{secret.value}"
        self._visit = group.create_task(self._settled(name, self._secrets[secret], self._visit_all(secret)))

    async def _settled(self, name: str, due: _Due, sweeping: Awaitable[Outcome]) -> None:
        """Sweep, and decide when to do it again."""
        problem = ""
        try:
            outcome = await sweeping
        except (ApiError, TimeoutError) as error:
            outcome, problem = Outcome.FAILED, str(error) or "it takes too long"
        except Exception as error:  # noqa: BLE001 # a server of others may send anything
            outcome, problem = Outcome.FAILED, f"what it sends cannot be read ({type(error).__name__})"
        if problem not in ("", due.problem):
            _log.warning("cluster %s: not swept: %s; retrying", name, problem)
        failed = outcome is Outcome.FAILED
        due.failures, due.problem, due.running = due.failures + 1 if failed else 0, problem, False
        if outcome is Outcome.DONE:
            seconds = self.every_seconds * (0.75 + 0.5 * self.random())
        else:
            seconds = Backoff(RETRY_SECONDS, self.every_seconds, self.random).seconds(max(due.failures, 1))
        due.at = self.clock() + seconds

    async def _sweep_used(self, key: ClusterKey, remote: RemoteCluster) -> Outcome:
        session = remote.newest
        if session is None:
            return Outcome.FAILED
        objects = [_reduced(known.kind, item) for known, item in session.cache.everything()]
        place = SweptPlace(str(key), session.api, session.config.namespace, session.failed)
        return await sweep(place, objects, self.clusters.home_id, self.home)

    async def _visit_all(self, secret: GroupKey) -> Outcome:
        """Sweep what a Secret leads to and no job names.

        Raises:
            ApiError: the Secret cannot be read, or a cluster does not answer; the others have been swept.
            TimeoutError: it takes too long.
        """
        outcomes, failure = [Outcome.DONE], None
        async with asyncio.timeout(VISIT_SECONDS):
            for key in await self.clusters.unused(secret):
                try:
                    outcomes.append(await self._visit_one(key))
                except KubeconfigError as error:
                    _log.debug("cluster %s: not swept: %s", key, error)
                except ApiError as error:
                    failure = error
        if failure is not None:
            raise failure
        return max(outcomes)

    async def _visit_one(self, key: ClusterKey) -> Outcome:
        async with self.clusters.visit(key) as visited:
            objects = await visited.objects(self.clusters.selector)
            place = SweptPlace(str(key), visited.api, visited.namespace, _ignored)
            return await sweep(place, objects, self.clusters.home_id, self.home)


def _is_known(session: Session | None) -> bool:
    """Whether the cluster answers, and everything that may be listed there has been."""
    return session is not None and session.whole and session.seen.settled and session.seen.state.takes_writes


def _reduced(kind: str, item: Object) -> Object:
    return {"kind": kind, "metadata": item["metadata"]}


def _ignored(_: ApiError) -> None:
    pass
