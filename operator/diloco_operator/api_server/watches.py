"""Lists and watches each kind of child for as long as the process lives.

A watch resumes where it ended. If that version is gone (410), the kind is listed again; if the server does not answer,
the request is repeated at growing intervals. The time of every message, bookmarks included, is recorded, because a
broken watch looks just like a quiet cluster.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from diloco.runtime.backoff import Backoff
from diloco_operator.api_server.api import Api, Selection
from diloco_operator.api_server.cache import Cache, GroupKey, as_version, version_of
from diloco_operator.api_server.errors import ApiError, ForbiddenError, GarbledError, GoneError, NotFoundError
from diloco_operator.api_server.intake import size_of
from diloco_operator.api_server.kinds import Object

_log = logging.getLogger(__name__)
_RECONNECT_SECONDS = 0.2  # so that a server that ends each watch at once does not cause a tight loop


async def _open() -> None:
    """Let every request through."""


def _ignored(_: ApiError) -> None:
    pass


def _nothing() -> None:
    pass


@dataclass(slots=True)
class Watch:
    """Keeps the objects of one selection in a cache."""

    api: Api
    selection: Selection
    cache: Cache
    changed: Callable[[GroupKey], None]
    """Called for a group after something in it changed."""
    clock: Callable[[], float]
    """Seconds, monotonic."""
    backoff: Backoff
    gate: Callable[[], Awaitable[None]] = _open
    """Awaited before each request."""
    failed: Callable[[ApiError], None] = _ignored
    """Called for each request that failed."""
    heard: Callable[[], None] = _nothing
    """Called for each answer."""
    version: int = 0
    """How far it has come."""
    heard_at: float | None = None
    """When the last message came from the server; None: never."""
    problem: str = ""
    """Why it is not watching at the moment; empty: it is watching."""
    forbidden: bool = False
    """The server's latest answer was 403 or 404: the namespace, or the permission to read it, is gone."""
    synced: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the cache holds everything."""
    _from: str = ""

    async def run(self) -> None:
        """List and watch forever.

        Raises:
            GarbledError: the server of another cluster sends what cannot be read.
            CacheFullError: it sends more than the cache has room for.
        """
        failures = 0
        while True:
            try:
                await self.gate()
                if not self._from:
                    await self._list()
                failures = 0
                await self._watch()
                await asyncio.sleep(_RECONNECT_SECONDS)
            except GoneError:
                self._from = ""
                await asyncio.sleep(_RECONNECT_SECONDS)
            except GarbledError:
                raise
            except ApiError as error:
                self.forbidden = isinstance(error, ForbiddenError | NotFoundError)
                self.failed(error)
                if self.problem != error.message:
                    self.problem = error.message
                    _log.warning("%s; retrying", error)
                failures += 1
                await asyncio.sleep(max(self.backoff.seconds(failures), error.retry_after_seconds))

    async def _list(self) -> None:
        items: list[Object] = []
        version, size, kind = "", 0, self.selection.kind.name
        try:
            async for page in self.api.pages(self.selection):
                items += (self._whole(item) for item in page.get("items") or ())
                if self.cache.share is not None:
                    size += size_of(page)
                    self.cache.reading(kind, size)
                version = page["metadata"]["resourceVersion"]
        finally:
            self.cache.reading(kind, 0)
        self._heard(as_version(version))
        self._from = version
        for group in self.cache.listed(kind, self.selection.namespace, items, self.version):
            self.changed(group)
        self.synced.set()
        self.heard()

    async def _watch(self) -> None:
        # Closed here, not by the garbage collector, so that its connection is closed at once.
        stream = self.api.watch(self.selection, self._from)
        try:
            async for event in stream:
                self._take(event["type"], event["object"])
        finally:
            await stream.aclose()

    def _take(self, event: str, item: Object) -> None:
        self._from = item["metadata"]["resourceVersion"]
        self._heard(version_of(item))
        self.heard()
        kind = self.selection.kind
        if event == "BOOKMARK":
            return
        group = (
            self.cache.gone(kind.name, item) if event == "DELETED" else self.cache.seen(kind.name, self._whole(item))
        )
        if group is not None:
            self.changed(group)

    def _whole(self, item: Object) -> Object:
        # Items of lists lack both, and readers of the cache rely on them.
        kind = self.selection.kind
        return {"apiVersion": kind.api_version, "kind": kind.name, **item}

    def _heard(self, version: int) -> None:
        self.version, self.heard_at, self.problem = max(self.version, version), self.clock(), ""
        self.forbidden = False


def watched_version(watches: Iterable[Watch], kind: str, namespace: str) -> int:
    """How far the watch of `kind` in `namespace` has come; 0: there is no such watch."""
    return max(
        (
            watch.version
            for watch in watches
            if watch.selection.kind.name == kind and watch.selection.namespace in (None, namespace)
        ),
        default=0,
    )
