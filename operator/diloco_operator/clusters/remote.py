"""A remote cluster for as long as jobs name it: its kubeconfig, read again when it changes, and the sessions of it.

A new kubeconfig gets a session of its own. The earlier session goes on until the new one knows everything, so that no
event is lost in between.
"""

import asyncio
import contextlib
import hashlib
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

from diloco.runtime.backoff import Backoff
from diloco_operator import labels
from diloco_operator.cluster.api import Api
from diloco_operator.cluster.cache import Cache
from diloco_operator.cluster.errors import ApiError
from diloco_operator.cluster.inline_client import Address, InlineClient
from diloco_operator.cluster.limits import REMOTE
from diloco_operator.cluster.requests import Seams
from diloco_operator.clusters.home import ClusterKey, HomeSecrets
from diloco_operator.clusters.kubeconfig import Kubeconfig, KubeconfigError, parse
from diloco_operator.clusters.renewal import Renewal
from diloco_operator.clusters.session import Session, Surroundings
from diloco_operator.clusters.state import ClusterSeen, ClusterState
from diloco_operator.clusters.tokens import TokenClaims

_log = logging.getLogger(__name__)
READ_AGAIN_SECONDS: Final = 300.0
"""A Secret is read again this often even if nothing was heard of a change."""
LEAST_SECONDS: Final = 1.0
"""Least time between two reads of a Secret, however often it changes."""
MOST_BYTES: Final = 32 << 20
"""Objects of one cluster that are kept: a thousand jobs take as much."""
UNKNOWN: Final = ClusterSeen(ClusterState.UNREACHABLE, "not asked yet", settled=False)


@dataclass(frozen=True, slots=True)
class StoredKubeconfig:
    """A kubeconfig as its Secret has it, with the token that has replaced its own, if there is one."""

    config: Kubeconfig
    digest: str
    """Of the Secret's content: what a renewed token belongs to."""
    secret_uid: str


async def read_kubeconfig(secrets: HomeSecrets, key: ClusterKey) -> StoredKubeconfig:
    """Read the Secret with a cluster's kubeconfig.

    Raises:
        KubeconfigError: there is none, or it cannot be used.
        ApiError: it cannot be read.
    """
    content, uid = await secrets.kubeconfig(key)
    config, digest = parse(content), hashlib.sha256(content).hexdigest()
    claims = TokenClaims.of(config.token)
    renewed = None if claims is None else await secrets.renewed_token(key, digest)
    later = None if renewed is None else TokenClaims.of(renewed)
    if renewed is not None and claims is not None and later is not None and claims.precedes(later):
        config = replace(config, token=renewed)
    return StoredKubeconfig(config, digest, uid)


def client_for(config: Kubeconfig) -> InlineClient:
    """A connection to a cluster, which the caller closes.

    Raises:
        KubeconfigError: its certificates cannot be used.
    """
    try:
        return InlineClient(
            Address(config.server, config.server_name, config.authority, config.token, config.certificate, config.key)
        )
    except (ssl.SSLError, ValueError):
        raise KubeconfigError("kubeconfig: a certificate or key is not accepted for TLS; use another one") from None


@dataclass(slots=True)
class _Running:
    session: Session
    client: InlineClient
    renewal: Renewal
    tasks: tuple[asyncio.Task[None], ...] = ()

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        self.session.close()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.client.close()


@dataclass(frozen=True, slots=True)
class _Left:
    cache: Cache
    seen: ClusterSeen
    place: tuple[str, str]


@dataclass(slots=True)
class RemoteCluster:
    """One cluster."""

    key: ClusterKey
    secrets: HomeSecrets
    around: Surroundings
    seams: Seams
    unusable: str = ""
    """Why the kubeconfig is not used; empty: it is, or has not been read yet."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _running: list[_Running] = field(default_factory=list)
    """The session in use, and the next one while it is not whole yet."""
    _ending: list[_Running] = field(default_factory=list)
    """Sessions that are no longer used and whose connections are not closed yet."""
    _left: _Left | None = None
    """What the last session knew, after it has ended."""

    @property
    def newest(self) -> Session | None:
        """The session of the kubeconfig as it is now; None: there is none."""
        return self._running[-1].session if self._running else None

    @property
    def cache(self) -> Cache | None:
        """The objects as last seen; None: none were seen."""
        if self._running:
            return self._running[0].session.cache
        return None if self._left is None else self._left.cache

    @property
    def seen(self) -> ClusterSeen:
        """The cluster as last seen."""
        if self.unusable:
            before = None if self._left is None else self._left.seen
            at, place = (None, "") if before is None else (before.seen_at, before.namespace)
            return ClusterSeen(ClusterState.KUBECONFIG_UNUSABLE, self.unusable, at, place)
        if not self._running:
            return UNKNOWN
        newest = self._running[-1]
        seen = newest.session.seen
        if not seen.settled and len(self._running) > 1:
            return self._running[0].session.seen
        seen = replace(seen, expiring=newest.renewal.not_renewed or newest.session.config.certificate_life)
        if seen.seen_at is None and self._left is not None:
            seen = replace(seen, seen_at=self._left.seen.seen_at)
        return seen

    def reread(self) -> None:
        """Read the Secret again soon, because it has changed."""
        self._changed.set()

    def failed(self, error: ApiError) -> None:
        """Take in that a write failed."""
        if self.newest is not None:
            self.newest.failed(error)

    async def run(self) -> None:
        """Follow the Secret until cancelled."""
        backoff = Backoff(1.0, 30.0, self.around.random)
        failures = 0
        try:
            while True:
                self._changed.clear()
                try:
                    await self._read()
                    failures = 0
                except ApiError as error:
                    failures += 1
                    _log.warning("cluster %s: %s; retrying", self.key, error)
                    await asyncio.sleep(max(backoff.seconds(failures), error.retry_after_seconds))
                    continue
                await self._drop_earlier()
                await asyncio.sleep(LEAST_SECONDS)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(READ_AGAIN_SECONDS):
                        await self._changed.wait()
        finally:
            await self._end(0)

    def reported(self) -> None:
        """Take in that what a session reports has changed."""
        self.around.reported()
        newest = self.newest
        if newest is None:
            return
        seen = newest.seen
        if seen.state is ClusterState.UNAUTHORIZED or (len(self._running) > 1 and seen.settled):
            # The Secret may hold new credentials already; and an earlier session is no longer needed.
            self._changed.set()

    async def _read(self) -> None:
        """Read the Secret, and start a session with what it holds if that is new.

        Raises:
            ApiError: it cannot be read.
        """
        try:
            stored = await read_kubeconfig(self.secrets, self.key)
            if self.newest is not None and self.newest.config == stored.config:
                return
            await self._start(stored)
        except KubeconfigError as error:
            await self._refuse(str(error))
        else:
            self.unusable = ""
            self.around.reported()

    async def _start(self, stored: StoredKubeconfig) -> None:
        """Start a session beside the one in use.

        Raises:
            KubeconfigError: its certificates cannot be used.
        """
        config = stored.config
        await self._end(1)  # those never became whole
        client = client_for(config)
        api = Api(client, labels.FIELD_MANAGER, self.seams, REMOTE)
        session = Session(config, api, self._cache_for(config), replace(self.around, reported=self.reported))

        async def keep(token: str) -> None:
            await self.secrets.keep_token(self.key, stored.digest, stored.secret_uid, token)
            self.reread()

        renewal = Renewal(session, keep, self.around.now, self.around.random)
        tasks = tuple(asyncio.create_task(self._guarded(part)) for part in (session.run, renewal.run))
        self._running.append(_Running(session, client, renewal, tasks))

    def _cache_for(self, config: Kubeconfig) -> Cache:
        """The cache of before if it is of the same objects, or an empty one."""
        if self._running and self._running[0].session.config.place == config.place:
            return self._running[0].session.cache
        if self._left is not None and self._left.place == config.place:
            return self._left.cache
        return Cache(labels.JOB, MOST_BYTES)

    async def _drop_earlier(self) -> None:
        if len(self._running) > 1 and self._running[-1].session.seen.settled and self._running[-1].session.whole:
            await self._end(0, 1)

    async def _refuse(self, why: str) -> None:
        """End what runs with an earlier kubeconfig: removing it is how one takes back what it allows."""
        if self.unusable != why:
            _log.warning("cluster %s: %s: %s", self.key, ClusterState.KUBECONFIG_UNUSABLE, why)
        if self._running:
            session = self._running[0].session
            self._left = _Left(session.cache, session.seen, session.config.place)
        self.unusable = why
        await self._end(0)
        self.around.reported()

    async def _end(self, first: int, stop: int | None = None) -> None:
        """End these of the running sessions. What a cancellation interrupts is ended by the next call."""
        self._ending += self._running[first:stop]
        del self._running[first:stop]
        while self._ending:
            await self._ending[0].end()
            del self._ending[0]

    async def _guarded(self, part: Callable[[], Awaitable[None]]) -> None:
        """Run a part of a session again if it fails, whatever it fails of."""
        backoff = Backoff(1.0, 60.0, self.around.random)
        failures = 0
        while True:
            try:
                await part()
            except Exception as error:  # noqa: BLE001 # it must end neither home's work nor that of other clusters
                failures += 1
                _log.error("cluster %s: failed; retrying", self.key, exc_info=error)
                await asyncio.sleep(backoff.seconds(failures))
            else:
                return
