"""Lists and watches each kind of child for as long as the process lives.

A watch resumes where it ended. If that version is gone (410), the kind is listed again; if the server does not answer,
the request is repeated at growing intervals. The time of every message, bookmarks included, is recorded, because a
broken watch looks just like a quiet cluster.

Anybody who may create an object can give it the labels of ours, and make it as large as the server allows. So an object
that is too long to be read, or for which its namespace has no room, is left out, and the kind is listed again when the
watch ends.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from diloco.runtime.backoff import Backoff
from diloco_operator.api_server.api import Api, Selection
from diloco_operator.api_server.cache import Cache, CacheFullError, GroupKey, as_version, version_of
from diloco_operator.api_server.errors import ApiError, ForbiddenError, GarbledError, GoneError, NotFoundError
from diloco_operator.api_server.kinds import Object

_log = logging.getLogger(__name__)
_RECONNECT_SECONDS = 0.2  # so that a server that ends each watch at once does not cause a tight loop
_STEADY_SECONDS = 30.0
"""A watch that has lasted as long has begun: if it breaks off then, that is a first failure."""


async def _open() -> None:
    """Let every request through."""


def _ignored(_: ApiError) -> None:
    pass


def _nothing() -> None:
    pass


def whole(item: Object) -> Object | None:
    """All of an object."""
    return item


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
    keep: Callable[[Object], Object | None] = whole
    """What the cache is to have of an object; None: nothing."""
    crowded: Callable[[str], None] | None = None
    """Called with a namespace for whose object there is no room in the cache; None: that ends the watch."""
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
    _left_out: bool = False
    """Something was left out since the last list."""

    async def run(self) -> None:
        """List and watch forever.

        Raises:
            GarbledError: the server of another cluster sends what cannot be read.
            CacheFullError: it sends more than the cache has room for.
        """
        failures = 0
        while True:
            began = None
            try:
                await self.gate()
                if not self._from:
                    await self._list()
                began = self.clock()
                await self._watch()
                failures = 0
                if self._left_out:
                    self._from = ""
                await asyncio.sleep(_RECONNECT_SECONDS)
            except GarbledError:
                raise
            except ApiError as error:
                steady = began is not None and self.clock() - began >= _STEADY_SECONDS
                failures = 1 if steady else failures + 1
                if isinstance(error, GoneError):
                    self._from = ""
                    if failures == 1:
                        await asyncio.sleep(_RECONNECT_SECONDS)
                        continue
                self.forbidden = isinstance(error, ForbiddenError | NotFoundError)
                self.failed(error)
                if self.problem != error.message:
                    self.problem = error.message
                    _log.warning("%s; retrying", error)
                await asyncio.sleep(max(self.backoff.seconds(failures), error.retry_after_seconds))

    async def _list(self) -> None:
        kind, namespace = self.selection.kind.name, self.selection.namespace
        names, lacking, changed, version = set[tuple[str, str]](), set[str](), set[GroupKey](), ""
        async for page in self.api.pages(self.selection):
            for item in page.get("items") or ():
                kept = self.keep(self._whole(item))
                if kept is None:
                    continue
                names.add((kept["metadata"]["namespace"], kept["metadata"]["name"]))
                try:
                    group = self.cache.found(kind, kept)
                except CacheFullError as error:
                    self._no_room(error)
                    lacking.add(error.namespace)
                else:
                    changed |= {group} if group is not None else set()
            version = page["metadata"]["resourceVersion"]
        self._heard(as_version(version))
        self._from, self._left_out = version, bool(lacking)
        for group in changed | self.cache.listed(kind, namespace, names, self.version, lacking):
            self.changed(group)
        self.synced.set()
        self.heard()

    async def _watch(self) -> None:
        # Closed here, not by the garbage collector, so that its connection is closed at once.
        stream = self.api.watch(self.selection, self._from)
        try:
            async for event in stream:
                self._take(event)
        finally:
            await stream.aclose()

    def _take(self, event: Object) -> None:
        item, kind = event.get("object"), self.selection.kind
        self._heard(0 if item is None else version_of(item))
        self.heard()
        if item is None:  # SKIPPED
            self._left_out = True
            return
        self._from = item["metadata"]["resourceVersion"]
        if event["type"] == "BOOKMARK":
            return
        group, kept = self.cache.group_of(item), self.keep(self._whole(item))
        try:
            if event["type"] == "DELETED" or kept is None:
                # Of one that is not kept, somebody may wait for the end.
                group = self.cache.gone(kind.name, item) or (group if kept is None else None)
            else:
                group = self.cache.seen(kind.name, kept)
        except CacheFullError as error:
            self._no_room(error)
        if group is not None:
            self.changed(group)

    def _no_room(self, error: CacheFullError) -> None:
        if self.crowded is None:
            raise error
        self._left_out = True
        self.crowded(error.namespace)

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
