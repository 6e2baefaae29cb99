"""A learner's side of its session. Used on one event loop: read by one task, written to by any."""

import asyncio
import contextlib
from typing import Any

import grpc

from diloco.wire.convert import pack_learner, unpack_syncer
from diloco.wire.errors import WireError, error_of
from diloco.wire.messages import LearnerMessage, SyncerMessage


class Session:
    """One session, from its Join on."""

    def __init__(self, call: Any) -> None:
        """``call``: gRPC's, of the Session method."""
        self._call = call
        self._writing = asyncio.Lock()  # gRPC takes one message at a time

    async def send(self, message: LearnerMessage) -> None:
        """Send a message; returns once the connection has taken it.

        Raises:
            WireError: the session is over; the text says why.
            InvalidMessageError: a value is out of range.
        """
        data = pack_learner(message)
        async with self._writing:
            try:
                await self._call.write(data)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                raise await self._error() from None

    async def receive(self) -> SyncerMessage | None:
        """The syncer's next message; None: it has ended the session.

        Raises:
            WireError: the session broke, or was ended with an error by either side.
        """
        try:
            data = await self._call.read()
        except grpc.aio.AioRpcError:
            raise await self._error() from None
        return None if data is grpc.aio.EOF else unpack_syncer(data)

    async def hang_up(self) -> None:
        """Say that nothing more will be sent; the syncer then ends the session."""
        async with self._writing:
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it is over
                await self._call.done_writing()

    async def close(self, grace_seconds: float = 2.0) -> None:
        """Hang up; break it off if the syncer has not ended it in ``grace_seconds``. What arrives is dropped."""
        try:
            async with asyncio.timeout(grace_seconds):
                await self.hang_up()
                while await self._call.read() is not grpc.aio.EOF:
                    pass
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            pass  # it is over, or is to be now
        finally:
            self._call.cancel()

    async def _error(self) -> WireError:
        return error_of(await self._call.code(), await self._call.details())
