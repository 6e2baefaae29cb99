"""A remote cluster for as long as jobs name it: its kubeconfig, read again when it changes, and the session of it.

There is one session at a time. A new kubeconfig ends it and begins another one, which lists everything again; if that
leads to the same place, what was known of it stays until the new session knows more.
"""

import asyncio
import contextlib
import logging
import ssl
import traceback
from dataclasses import dataclass, field, replace
from typing import Final

from diloco.runtime.backoff import Backoff
from diloco_operator import labels
from diloco_operator.api_server.api import Api
from diloco_operator.api_server.cache import Cache
from diloco_operator.api_server.errors import ApiError
from diloco_operator.api_server.limits import REMOTE
from diloco_operator.api_server.requests import RequestHooks
from diloco_operator.api_server.transport import Server, Transport, tls_of
from diloco_operator.cluster_state import ClusterSeen, ClusterState
from diloco_operator.clusters.home import ClusterKey, HomeSecrets, StoredKubeconfig
from diloco_operator.clusters.kubeconfig import Kubeconfig, KubeconfigError
from diloco_operator.clusters.session import Session, Surroundings
from diloco_operator.shares import Share

_log = logging.getLogger(__name__)
READ_AGAIN_SECONDS: Final = 300.0
"""A Secret is read again this often even if nothing was heard of a change."""
LEAST_SECONDS: Final = 1.0
"""Least time between two reads of a Secret, however often it changes."""
MOST_BYTES: Final = 128 << 20
"""Objects of all clusters that are kept or being read: those of a thousand jobs take half of it."""
UNKNOWN: Final = ClusterSeen(ClusterState.UNREACHABLE, "not asked yet", settled=False)


def server_of(config: Kubeconfig) -> Server:
    """The API server that a kubeconfig leads to.

    Raises:
        KubeconfigError: its certificates cannot be used.
    """
    try:
        tls = tls_of(config.authority, config.certificate, config.key)
    except (ssl.SSLError, ValueError):
        raise KubeconfigError("kubeconfig: a certificate or key is not accepted for TLS; use another one") from None

    async def authorization() -> str:
        return f"Bearer {config.token}" if config.token else ""

    return Server(config.server, tls, authorization, config.server_name or None)


@dataclass(slots=True)
class RemoteCluster:
    """One cluster."""

    key: ClusterKey
    secrets: HomeSecrets
    around: Surroundings
    hooks: RequestHooks
    share: Share
    """Of the bytes that its objects may take."""
    session: Session | None = None
    """Of the kubeconfig as it is now, or was while it could be used; None: there was none."""
    unusable: str = ""
    """Why the kubeconfig is not used; empty: it is, or has not been read yet."""
    deleted: bool = False
    """The Secret stays only because it is used."""
    _runs: bool = False
    """The session has not ended."""
    _before: ClusterSeen | None = None
    """As an earlier session last saw the same place; if that is settled, it is shown until this one has settled."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def cache(self) -> Cache | None:
        """The objects as last seen; None: none were seen."""
        return None if self.session is None else self.session.cache

    @property
    def seen(self) -> ClusterSeen:
        """The cluster as last seen."""
        seen = self._answered
        if self.unusable:
            return ClusterSeen(ClusterState.KUBECONFIG_UNUSABLE, self.unusable, seen.seen_at, seen.namespace)
        return replace(seen, deleted=True) if self.deleted else seen

    @property
    def _answered(self) -> ClusterSeen:
        """What the cluster itself last showed."""
        seen = self.session.seen if self.session is not None and self._runs else UNKNOWN
        before = self._before
        if before is None:
            return seen
        shown = before if before.settled and not seen.settled else seen
        return replace(shown, seen_at=seen.seen_at or before.seen_at, namespace=seen.namespace or before.namespace)

    def reread(self) -> None:
        """Read the Secret again soon, because it has changed."""
        self._changed.set()

    def failed(self, error: ApiError) -> None:
        """Take in that a write failed."""
        if self.session is not None:
            self.session.failed(error)

    async def run(self) -> None:
        """Follow the Secret, and the cluster that it leads to, until cancelled. Whatever fails is tried again."""
        backoff, failures = Backoff(1.0, 60.0, self.around.random), 0
        try:
            while True:
                try:
                    await self._follow_secret()
                except Exception as error:  # noqa: BLE001 # a server of others may send anything; home goes on
                    failures += 1
                    self._broken(error)
                    await asyncio.sleep(backoff.seconds(failures))
        finally:
            self.share.hold("", 0)

    async def _follow_secret(self) -> None:
        stored = None
        while True:
            while stored is None:
                stored = await self._read()
                if stored is None:
                    await self._pause()
            stored = await self._follow(stored)

    def _broken(self, error: BaseException) -> None:
        """Take in that something failed, of which the cluster has sent what cannot be read."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        place = traceback.extract_tb(error.__traceback__)[-1]
        what = error.call.resource if isinstance(error, ApiError) else type(error).__name__
        # Nothing that was sent is in the log.
        _log.warning("cluster %s: %s at line %s of %s; retrying", self.key, what, place.lineno, place.name)
        if self.session is not None and self._before is not None:
            text = f"{self.session.config.server} sends what cannot be read ({what})"
            self._before = replace(self._before, state=ClusterState.UNSUITABLE, message=text, settled=True)
            self.around.reported()

    async def _follow(self, stored: StoredKubeconfig) -> StoredKubeconfig | None:
        """Use a kubeconfig until its Secret has another one, which is returned, or none that can be used: None."""
        async with Transport(server_of(stored.config)) as transport:
            self.session, self._runs = self._session(stored, transport), True
            try:
                async with asyncio.TaskGroup() as group:
                    running = group.create_task(self.session.run())
                    self.around.reported()
                    found: StoredKubeconfig | None = stored
                    while found is not None and found.config == stored.config:
                        await self._pause()
                        found = await self._read()
                    running.cancel()
            finally:
                answered = self._answered
                # What a kubeconfig that was taken away has shown counts for nothing later.
                self._before = replace(answered, settled=answered.settled and not self.unusable)
                self._runs = False
        return found

    async def _read(self) -> StoredKubeconfig | None:
        """What the Secret holds now; None: nothing that can be used."""
        backoff, failures = Backoff(1.0, 30.0, self.around.random), 0
        while True:
            self._changed.clear()
            try:
                stored = await self.secrets.kubeconfig(self.key)
                server_of(stored.config)
            except KubeconfigError as error:
                if self.unusable != str(error):
                    _log.warning("cluster %s: %s: %s", self.key, ClusterState.KUBECONFIG_UNUSABLE, error)
                    self.unusable = str(error)
                    self.around.reported()
                return None
            except ApiError as error:
                failures += 1
                _log.warning("cluster %s: %s; retrying", self.key, error)
                await asyncio.sleep(max(backoff.seconds(failures), error.retry_after_seconds))
            else:
                if self.unusable or self.deleted != stored.deleted:
                    self.unusable, self.deleted = "", stored.deleted
                    self.around.reported()
                return stored

    async def _pause(self) -> None:
        """Wait until the Secret may have changed."""
        await asyncio.sleep(LEAST_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_AGAIN_SECONDS):
                await self._changed.wait()

    def _session(self, stored: StoredKubeconfig, transport: Transport) -> Session:
        cache = Cache(labels.JOB, lambda _: self.share)
        if self.session is not None and self.session.config.place == stored.config.place:
            cache = self.session.cache
        else:
            self._before = None

        async def keep(token: str) -> None:
            await self.secrets.keep_token(self.key, stored, token)
            self.reread()

        api = Api(transport, labels.FIELD_MANAGER, self.hooks, replace(REMOTE, share=self.share))
        return Session(stored.config, api, cache, replace(self.around, reported=self._reported), keep)

    def _reported(self) -> None:
        self.around.reported()
        if self.session is not None and self.session.seen.state is ClusterState.UNAUTHORIZED:
            # The Secret may hold new credentials already.
            self._changed.set()
