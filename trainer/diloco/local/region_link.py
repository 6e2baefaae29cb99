"""A region's link to the syncer, in our hands: a TCP relay that can be cut and mended.

It must not know what passes. An event loop in a thread of its own; connections are relayed in both directions, and
while the link is cut either nothing moves (as when a cable is pulled: buffers fill, and what is sent waits)
or connections are reset and new ones refused.
"""

import asyncio
import contextlib
import socket
import threading
from typing import Self

from diloco.local.chaos import Manner
from diloco.runtime.addresses import format_address, parse_address

_CHUNK_BYTES = 1 << 18


class RegionLink:
    """Relays connections to ``upstream`` from a loopback port of its own, from construction until ``close``."""

    def __init__(self, upstream: str) -> None:
        """Listen on a free loopback port for connections to be relayed to ``upstream`` (``host:port``).

        Raises:
            OSError: no port could be had.
        """
        self._upstream = parse_address(upstream)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = format_address("127.0.0.1", self._listener.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._refusing = asyncio.Event()
        self._connections: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, name="region-link", daemon=True)
        self._thread.start()

    def cut(self, manner: Manner) -> None:
        """Take the link away."""
        self._loop.call_soon_threadsafe(self._cut, manner)

    def mend(self) -> None:
        """Give it back."""
        self._loop.call_soon_threadsafe(self._mend)

    def close(self) -> None:
        """End every connection and the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._relay, sock=self._listener)
        await self._closing.wait()
        server.close()
        self._reset()

    def _cut(self, manner: Manner) -> None:
        self._open.clear()
        if manner is Manner.RESET:
            self._refusing.set()
            self._reset()

    def _mend(self) -> None:
        self._refusing.clear()
        self._open.set()

    def _reset(self) -> None:
        for writer in tuple(self._connections):
            writer.transport.abort()

    async def _relay(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        # Cancelled when the loop closes; Python 3.11's streams make an error of a handler that ends so.
        with contextlib.suppress(asyncio.CancelledError):
            await self._carry(near_reader, near)

    async def _carry(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        if self._refusing.is_set():
            near.transport.abort()
            return
        self._connections.add(near)
        try:
            await self._open.wait()
            try:
                far_reader, far = await asyncio.open_connection(*self._upstream)
            except OSError:
                return
            self._connections.add(far)
            try:
                if self._refusing.is_set():
                    return  # reset while it was being made: nobody would end it before the link is mended
                await asyncio.gather(self._pump(near_reader, far), self._pump(far_reader, near))
            finally:
                self._connections.discard(far)
                far.transport.abort()
        finally:
            self._connections.discard(near)
            near.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
            await self._open.wait()
        # The end of one direction ends the other too: gRPC never keeps a connection half open.
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()
