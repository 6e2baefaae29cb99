"""Sessions on the server: one stream per learner, as an inbound iterator and a function to send.

The handler may outlive the connection for as long as it needs: it learns that the stream has ended, and is never
cancelled in the middle of its work.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial

import grpc

from diloco.wire.convert import pack_syncer, unpack_learner
from diloco.wire.errors import InvalidMessageError, ProtocolVersionError, TooLargeError, WireError
from diloco.wire.messages import PROTOCOL, Join, LearnerMessage, SyncerMessage
from diloco.wire.server.calls import Context, first_message, read_message
from diloco.wire.server.handler import SyncHandler
from diloco.wire.server.traffic import Kind, Traffic, Way
from diloco.wire.tls.tls import Peer

_log = logging.getLogger(__name__)

_FLUSH_SECONDS = 5.0
"""Time for queued messages to go out after the handler has returned."""


class SessionCalls:
    """The call Session."""

    def __init__(self, handler: SyncHandler, queued_messages: int, join_seconds: float, traffic: Traffic) -> None:
        """Queue up to ``queued_messages`` to each learner; end a session whose Join does not come in time."""
        self._handler = handler
        self._queued_messages = queued_messages
        self._join_seconds = join_seconds
        self._traffic = traffic

    async def session(self, _requests: AsyncIterator[bytes], context: Context, peer: Peer) -> None:
        """Serve one session, from its Join to its end.

        Raises:
            WireError: it does not begin with a Join of this protocol, an invalid message came, or the learner does not
                read what it is sent.
        """
        first, join = await self._join(context)
        if join.protocol != PROTOCOL:
            raise ProtocolVersionError(f"the learner speaks protocol {join.protocol}, the syncer {PROTOCOL}")
        peer.must_be(join.learner, join.job)
        count = partial(self._count, join.learner)
        count(Way.UP, first)
        stream = _Stream(context, self._queued_messages, count)
        writing = asyncio.create_task(stream.write_all())
        handling = asyncio.create_task(self._handler.session(join, peer, stream.inbound(), stream.send))
        handling.add_done_callback(_quietly)
        try:
            await asyncio.wait({handling, writing}, return_when=asyncio.FIRST_COMPLETED)
            if handling.done():
                stream.finish_sending()
                await asyncio.wait({writing}, timeout=_FLUSH_SECONDS)
        except asyncio.CancelledError:
            handling.add_done_callback(partial(_tell_how_it_ended, peer))
            raise
        finally:
            # Also reached by cancellation: the learner hung up, or the server stops.
            stream.end()
            writing.add_done_callback(_quietly)
            await asyncio.wait({handling})
        if stream.overflowed:
            raise TooLargeError(f"{self._queued_messages} messages are waiting for the learner")
        handling.result()

    def _count(self, learner: str, way: Way, message: bytes) -> None:
        self._traffic.count(learner, way, Kind.CONTROL, len(message))

    async def _join(self, context: Context) -> tuple[bytes, Join]:
        first = await first_message(context, self._join_seconds, "Join")
        join = None if first is None else unpack_learner(first)
        if first is None or not isinstance(join, Join):
            raise InvalidMessageError("a session begins with Join")
        return first, join


class _Stream:
    """A session's two directions, between the call that owns the stream and the handler."""

    def __init__(self, context: Context, queued_messages: int, count: Callable[[Way, bytes], None]) -> None:
        self._context = context
        self._queued_messages = queued_messages
        self._count = count
        self._outgoing: deque[bytes] = deque()
        self._outgoing_changed = asyncio.Event()
        self._no_more_out = False
        self._no_more_in = False
        self._reading = asyncio.timeout(None)
        self.overflowed = False

    def send(self, message: SyncerMessage) -> None:
        if self._no_more_out:
            return
        if len(self._outgoing) >= self._queued_messages:
            self.overflowed = True
            self.end()
            return
        self._outgoing.append(pack_syncer(message))
        self._outgoing_changed.set()

    async def inbound(self) -> AsyncIterator[LearnerMessage]:
        # What the handler has not taken waits in gRPC, and then at the learner (HTTP/2 flow control).
        while not self._no_more_in:
            try:
                async with asyncio.timeout(None) as self._reading:
                    message = await read_message(self._context)
            except (TimeoutError, grpc.aio.BaseError, asyncio.InvalidStateError):  # `end`, or the connection broke
                return
            if message is None:
                return
            self._count(Way.UP, message)
            yield unpack_learner(message)

    def finish_sending(self) -> None:
        """Send what is queued; nothing can be added."""
        self._no_more_out = True
        self._outgoing_changed.set()

    def end(self) -> None:
        """End the stream. Messages that are not sent or not read yet are dropped."""
        self._outgoing.clear()
        self.finish_sending()
        self._no_more_in = True
        with contextlib.suppress(RuntimeError):  # nothing is being read
            self._reading.reschedule(asyncio.get_running_loop().time())

    async def write_all(self) -> None:
        while True:
            while self._outgoing:
                message = self._outgoing.popleft()
                await self._context.write(message)
                self._count(Way.DOWN, message)
            if self._no_more_out:
                return
            self._outgoing_changed.clear()
            await self._outgoing_changed.wait()


def _tell_how_it_ended(peer: Peer, handling: "asyncio.Task[None]") -> None:
    """Log an error after which the other side has gone, since the call can no longer report it to the peer."""
    error = None if handling.cancelled() else handling.exception()
    if isinstance(error, WireError):
        _log.info("session of %s ended: %s; the learner disconnected", peer.address, error)
    elif error is not None:
        _log.error("session of %s failed", peer.address, exc_info=error)


def _quietly(task: "asyncio.Task[None]") -> None:
    """Ignore a broken stream's exception in a task, as the call reports how it ended."""
    with contextlib.suppress(asyncio.CancelledError):
        task.exception()
