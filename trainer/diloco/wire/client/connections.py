"""A learner's connections to the syncer, replaced when its certificates are renewed or the syncer's address changes.

gRPC keeps a channel's certificates and address for the channel's life, however often it reconnects. So channels come in
generations: once there are new certificates, or a new session finds another address, new calls use new channels;
running calls end on the old ones, which are then closed.
"""

import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from diloco.wire.channel import CONTROL, SHORT
from diloco.wire.client.lanes import Lanes, LoopThread, OpenLane
from diloco.wire.client.route import Route, Target
from diloco.wire.client.short import ShortCalls
from diloco.wire.errors import ClosedError
from diloco.wire.tls.files import FollowedFiles, TlsFiles
from diloco.wire.tls.tls import client_credentials

if TYPE_CHECKING:
    import concurrent.futures

T = TypeVar("T")

OpenBlocking = Callable[[int, Target, grpc.ChannelCredentials | None], grpc.Channel]
"""Makes the channel of a number to a target for calls that wait in threads; without credentials in plain text."""


@dataclass(frozen=True, slots=True)
class Opening:
    """How channels are made."""

    blocking: OpenBlocking
    lane: OpenLane


class _Generation:
    """Channels to one target with one set of certificates."""

    def __init__(self, opening: Opening, target: Target, credentials: grpc.ChannelCredentials | None) -> None:
        self.target = target
        self.control = opening.blocking(CONTROL, target, credentials)
        self.short = ShortCalls(lambda: opening.blocking(SHORT, target, credentials))
        self.lanes = Lanes(lambda number: opening.lane(number, target, credentials))
        self.sessions = 0
        self.transfers = 0

    @property
    def in_use(self) -> bool:
        return self.sessions > 0 or self.transfers > 0

    def close_blocking(self) -> None:
        self.control.close()
        self.short.close()


class Connections:
    """All channels of a client. Used by several threads; connects only when it is used."""

    def __init__(self, opening: Opening, route: Route, tls: TlsFiles | None) -> None:
        """Read the certificates; the route is first asked when a connection is needed.

        Raises:
            TlsFileError: they cannot be used.
        """
        self._opening = opening
        self._route = route
        self._files = None if tls is None else FollowedFiles(tls)
        self._lock = threading.Lock()
        self._loop = LoopThread()
        self._newest: _Generation | None = None
        self._old: list[_Generation] = []
        self._look = True
        """Ask the route again at the next call."""
        self._closed = False

    def control(self) -> tuple[grpc.Channel, Callable[[], None]]:
        """The channel for a session, and a function to call when the session is over.

        Raises:
            UnavailableError: it is not known yet where the syncer is.
        """
        self._close_unused()
        with self._lock:
            self._look = True
            generation = self._current()
            generation.sessions += 1

        def over() -> None:
            with self._lock:
                generation.sessions -= 1

        return generation.control, over

    def nobody_answered(self) -> None:
        """A transfer found nobody: the next one asks the route, as a session would."""
        with self._lock:
            self._look = True

    @contextlib.contextmanager
    def transfer(self, work: Callable[[Lanes], Coroutine[Any, Any, T]]) -> Iterator["concurrent.futures.Future[T]"]:
        """Transfer over connections of their own: the work on the event loop, which it may be cancelled on."""
        with self._transferring() as generation:
            yield self._loop.start(lambda: work(generation.lanes))

    @contextlib.contextmanager
    def short(self) -> Iterator[ShortCalls]:
        """Transfer one part over a connection for such."""
        with self._transferring() as generation:
            yield generation.short

    @contextlib.contextmanager
    def _transferring(self) -> Iterator[_Generation]:
        self._close_unused()
        with self._lock:
            generation = self._current()
            generation.transfers += 1
        try:
            yield generation
        finally:
            with self._lock:
                generation.transfers -= 1

    def close(self) -> None:
        """Break off all calls, and close every connection."""
        with self._lock:
            self._files = None
            self._closed = True
            generations = [*([] if self._newest is None else [self._newest]), *self._old]

        async def close_lanes() -> None:
            for generation in generations:
                await generation.lanes.close()

        self._loop.close(close_lanes)
        for generation in generations:
            generation.close_blocking()

    def _current(self) -> _Generation:
        """The generation for new calls. Called with the lock held.

        Raises:
            UnavailableError: it is not known yet where the syncer is.
        """
        if self._closed:
            raise ClosedError("the client is closed")
        newest = self._newest
        renewed = None if self._files is None else self._files.renewed()
        if newest is not None and renewed is None and not self._look:
            return newest
        # Only what finds nobody looks for another address: a session that works and its transfers stay where they are.
        target = self._route.target() if newest is None or self._look else newest.target
        self._look = False
        if newest is not None and renewed is None and target == newest.target:
            return newest
        if newest is not None:
            self._old.append(newest)
        credentials = None if self._files is None else client_credentials(self._files.credentials)
        self._newest = _Generation(self._opening, target, credentials)
        return self._newest

    def _close_unused(self) -> None:
        # Not done where the last call ends: that may be in one of gRPC's own threads, which a close waits for.
        with self._lock:
            unused = [generation for generation in self._old if not generation.in_use]
            self._old = [generation for generation in self._old if generation.in_use]
        for generation in unused:
            generation.close_blocking()
            if generation.lanes.opened:
                self._loop.start(generation.lanes.close)
