"""Sweeps other clusters: deletes what jobs that are gone have left there, when a cluster comes back and now and then.

A cluster in use is swept from what is known of it, so it costs no request there. One that no job names is not: what it
holds is swept when a job names it again, or by `diloco cluster orphans`.

The objects are taken first, then the uids of all jobs from the API server: a job that is made in between is in the
list, and objects of a home whose jobs cannot all be listed are left alone. `decide.sweep` says which ones go. Nothing
goes where home does not hold its Lease: a copy of it, made from a backup, knows of fewer jobs.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from diloco.runtime.backoff import Backoff
from diloco_operator.api_server.api import Api, Selection
from diloco_operator.api_server.errors import REFUSED, ApiError, ConflictError, NotFoundError
from diloco_operator.api_server.kinds import JOB, REMOTE_CHILDREN
from diloco_operator.clusters.home import ClusterKey
from diloco_operator.clusters.registry import RemoteClusters
from diloco_operator.clusters.session import Session
from diloco_operator.decide.sweep import orphans
from diloco_operator.objects import uid_of

_log = logging.getLogger(__name__)
EVERY_SECONDS: Final = 600.0
"""Between two sweeps of a cluster, on average."""
LOOK_SECONDS: Final = 5.0
"""Between two looks at which clusters are due."""
LONGEST_SECONDS: Final = 120.0
"""The longest that a cluster is swept: the others wait."""
RETRY_SECONDS: Final = 30.0
"""Before a failed sweep is tried again, the first time."""
_KINDS: Final = {kind.name: kind for kind in REMOTE_CHILDREN}


@dataclass(slots=True)
class _Due:
    """When a cluster is swept next."""

    at: float
    failures: int = 0
    met: tuple[Session, int] | None = None
    """The session that was last looked at, and how often its server had come back."""


@dataclass(slots=True)
class Sweeper:
    """Sweeps clusters, one at a time. Used from one event loop."""

    clusters: RemoteClusters
    api: Api
    """Home's."""
    swept: Callable[[str], None]
    """Called for each deleted object, with the name of its cluster."""
    clock: Callable[[], float]
    """Seconds, monotonic."""
    random: Callable[[], float]
    """Evenly from 0 to 1."""
    look_seconds: float = LOOK_SECONDS
    every_seconds: float = EVERY_SECONDS
    _due: dict[ClusterKey, _Due] = field(default_factory=dict)

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            if self.clusters.home_id:
                await self.sweep_those_due()
            await asyncio.sleep(self.look_seconds)

    async def sweep_those_due(self) -> None:
        """Sweep the clusters that answer, and have come back or were last swept some time ago."""
        used = self.clusters.used
        self._due = {key: self._due.get(key, _Due(self.clock())) for key in used}
        for key, due in self._due.items():
            session, seen = used[key].session, used[key].seen
            if session is None or not (session.whole and seen.settled and seen.takes_writes):
                due.met = None
                continue
            if due.met != (session, session.returns):
                due.at, due.met = self.clock(), (session, session.returns)
            if due.at <= self.clock():
                await self._sweep(key, session, due)

    async def _sweep(self, key: ClusterKey, session: Session, due: _Due) -> None:
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                done = await self._delete_orphans(key, session)
        except (ApiError, TimeoutError) as error:
            _log.warning("cluster %s: not swept: %s; retrying", key, str(error) or "it takes too long")
            done = False
        due.failures = 0 if done else due.failures + 1
        backoff = Backoff(min(RETRY_SECONDS, self.every_seconds), self.every_seconds, self.random)
        seconds = self.every_seconds * (0.75 + 0.5 * self.random()) if done else backoff.seconds(due.failures)
        due.at = self.clock() + seconds

    async def _delete_orphans(self, key: ClusterKey, session: Session) -> bool:
        """Whether nothing is left.

        Raises:
            ApiError: the jobs cannot be listed, or the cluster does not answer.
        """
        objects = [(known.kind, item) for known, item in session.cache.everything() if known.kind in _KINDS]
        if not objects:
            return True
        done, namespaces = True, self.clusters.namespaces
        jobs = [await self.api.items(Selection(JOB, one, metadata_only=True)) for one in namespaces or (None,)]
        uids = {uid_of(job) for some in jobs for job in some}
        for one in orphans(objects, self.clusters.home_id, uids, namespaces):
            try:
                namespace = session.config.namespace
                await session.api.delete(_KINDS[one.kind], namespace, one.name, {"uid": one.uid})
            except (NotFoundError, ConflictError):
                continue  # deleted already, or replaced by another
            except REFUSED as error:
                done = False
                session.failed(error)
                _log.warning("cluster %s: %s", key, error)
            else:
                self.swept(str(key))
                _log.info("cluster %s: %s %s deleted, which was left by job %s", key, one.kind, one.name, one.job)
        return done
