"""A region's simulated link to the syncer: a TCP relay with a rate and a delay, which can be cut and restored.

It runs an event loop in a thread of its own and relays connections in both directions. While the link is cut either
nothing is relayed (as with an unplugged cable: buffers fill, and senders wait) or connections are reset and new ones
refused.
"""

import asyncio
import contextlib
import socket
import threading
import time

from diloco.local.chaos.shaping import Pipe, Shape
from diloco.local.chaos.spec import Manner
from diloco.runtime.addresses import format_address, parse_address

_WINDOW_BYTES = 1 << 16
"""Send buffer of a shaped connection into the relay: larger buffers would hide the link's rate."""
UNSHAPED = Shape()
_Chunks = asyncio.Queue[tuple[float, bytes]]
"""Bytes, and the earliest time at which they have arrived; empty ones end a direction."""


class RegionLink:
    """Relays connections to ``upstream`` from a loopback port of its own, from construction until ``close``."""

    def __init__(self, upstream: str, up: Shape = UNSHAPED, down: Shape = UNSHAPED) -> None:
        """Listen on a free loopback port for connections to be relayed to ``upstream`` (``host:port``).

        ``up`` and ``down``: rate and delay on the way to ``upstream`` and back.

        Raises:
            OSError: no port is available.
        """
        self._upstream = parse_address(upstream)
        self._up, self._down = up, down
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        if up.pipes or down.pipes:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _WINDOW_BYTES)
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
        """Cut the link."""
        self._loop.call_soon_threadsafe(self._cut, manner)

    def restore(self) -> None:
        """Restore the link."""
        self._loop.call_soon_threadsafe(self._restore)

    def close(self) -> None:
        """End every connection and the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

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

    def _restore(self) -> None:
        self._refusing.clear()
        self._open.set()

    def _reset(self) -> None:
        for writer in tuple(self._connections):
            writer.transport.abort()

    async def _relay(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        # Cancelled when the loop closes; Python 3.11's streams report a cancelled handler as an error.
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
                far_reader, far = await self._connect()
            except OSError:
                return
            self._connections.add(far)
            try:
                if self._refusing.is_set():
                    return  # reset while it was being opened: nothing else would close it before the link is restored
                await asyncio.gather(self._pump(near_reader, far, self._up), self._pump(far_reader, near, self._down))
            finally:
                self._connections.discard(far)
                far.transport.abort()
        finally:
            self._connections.discard(near)
            near.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not (self._up.pipes or self._down.pipes):
            return await asyncio.open_connection(*self._upstream)
        family, kind, protocol, _, address = (await self._loop.getaddrinfo(*self._upstream, type=socket.SOCK_STREAM))[0]
        ours = socket.socket(family, kind, protocol)
        try:
            ours.settimeout(0)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _WINDOW_BYTES)
            await self._loop.sock_connect(ours, address)
            return await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, shape: Shape) -> None:
        # Each pipe has a task of its own: while a chunk passes one, the next chunk passes the one before.
        queues: list[_Chunks] = [asyncio.Queue(1) for _ in shape.pipes]
        delayed: _Chunks = asyncio.Queue(shape.delayed_chunks)
        queues.append(delayed)
        parts = [_take(reader, shape, queues[0]), self._deliver(delayed, writer)]
        parts += [_pass(pipe, shape, *ends) for pipe, *ends in zip(shape.pipes, queues, queues[1:], strict=False)]
        tasks = [asyncio.ensure_future(part) for part in parts]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        # The end of one direction ends the other too: gRPC never keeps a connection half open.
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()

    async def _deliver(self, delayed: _Chunks, writer: asyncio.StreamWriter) -> None:
        while True:
            at, data = await delayed.get()
            await _sleep_until(at)
            await self._open.wait()
            if not data:
                return
            writer.write(data)
            await writer.drain()


async def _take(reader: asyncio.StreamReader, shape: Shape, chunks: _Chunks) -> None:
    while data := await reader.read(shape.chunk_bytes):
        await chunks.put((time.monotonic() + shape.delay_seconds, data))
    await chunks.put((0.0, b""))


async def _pass(pipe: Pipe, shape: Shape, before: _Chunks, after: _Chunks) -> None:
    """Pass chunks through a pipe; a chunk's delay counts from when it is through."""
    while True:
        _, data = await before.get()
        if not data:
            await after.put((0.0, data))
            return
        await _sleep_until(pipe.reserve(len(data)))
        await after.put((time.monotonic() + shape.delay_seconds, data))


async def _sleep_until(at: float) -> None:
    rest = at - time.monotonic()
    if rest > 0:
        await asyncio.sleep(rest)
