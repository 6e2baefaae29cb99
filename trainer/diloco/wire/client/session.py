"""A learner's side of its session: send from any thread, iterate from one."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self

import grpc

from diloco.wire.convert import pack_learner, unpack_syncer
from diloco.wire.errors import ClosedError, TooLargeError, UnavailableError, error_of
from diloco.wire.messages import Join, LearnerMessage, SyncerMessage, Welcome

_QUEUED_MESSAGES = 4096
"""Most messages that wait to be sent; more end the session. Keepalive notices a dead connection long before."""


class Session:
    """One session. Iterating yields the syncer's messages until it ends; raises ``WireError`` if it breaks."""

    def __init__(
        self,
        begin: Any,
        join: Join,
        ended: Callable[[], None],
        client_closed: Callable[[], bool],
        welcomed: Callable[[Welcome], None] = lambda _: None,
    ) -> None:
        """``begin``: gRPC's callable of the Session method. ``ended``: called once, by any thread, when it is over.

        ``welcomed``: called with a Welcome before it is yielded.
        """
        self._welcomed = welcomed
        self._ended = ended
        self._client_closed = client_closed
        self._outgoing: queue.Queue[bytes | None] = queue.Queue()
        self._outgoing.put(pack_learner(join))
        self._over = threading.Event()
        self._closing = False
        self._reading = threading.Lock()
        self._call: Any = begin(iter(self._outgoing.get, None))
        if not self._call.add_callback(self._end):
            self._end()

    def send(self, message: LearnerMessage) -> None:
        """Queue a message; returns at once.

        Raises:
            UnavailableError: the session is over.
            TooLargeError: the syncer does not take what was sent; the session is over with this.
            InvalidMessageError: a value is out of range.
        """
        if self._over.is_set() or self._closing:
            raise UnavailableError("the session is over")
        if self._outgoing.qsize() >= _QUEUED_MESSAGES:
            self._call.cancel()
            raise TooLargeError(f"{_QUEUED_MESSAGES} messages are waiting for the syncer")
        self._outgoing.put(pack_learner(message))

    @property
    def backlog(self) -> int:
        """Messages that the connection has not taken yet."""
        return self._outgoing.qsize()

    def __iter__(self) -> Iterator[SyncerMessage]:
        """The syncer's messages, in the order sent.

        Raises:
            WireError: the session broke, or was ended with an error by either side.
        """
        while (data := self._next()) is not None:
            message = unpack_syncer(data)
            if isinstance(message, Welcome):
                self._welcomed(message)
            yield message

    def close(self, grace_seconds: float = 2.0) -> None:
        """Send what is queued and hang up; break it off if the syncer has not ended it in ``grace_seconds``.

        Messages that arrive meanwhile are dropped, unless a thread is still iterating.
        """
        self._closing = True
        self._outgoing.put(None)
        if grace_seconds > 0 and not self._over.is_set():
            timer = threading.Timer(grace_seconds, self._call.cancel)
            timer.start()
            # gRPC reports the end of a call only to a reader that reads it to the end.
            while self._next() is not None:
                pass
            timer.cancel()
        self._call.cancel()

    def _next(self) -> bytes | None:
        """The next message; None at the end, or when closed on this side."""
        with self._reading:
            try:
                data: bytes | None = next(self._call, None)
            except grpc.RpcError:
                if self._closing:
                    return None
                if self._client_closed():
                    raise ClosedError("the client is closed") from None
                raise error_of(self._call.code(), self._call.details()) from None
            return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self) -> None:
        self._over.set()
        self._ended()
        self._outgoing.put(None)  # ends gRPC's thread that takes from the queue
