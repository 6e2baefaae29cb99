"""The far side of the benchmarks `wire` and `link`, a process of its own: our server, or plain TCP connections.

Both check every chunk with XXH3-64, and receive into a buffer made beforehand.
"""

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import xxhash

from diloco.runtime.process.memory import keep_freed_memory
from diloco.wire.channel import DEFAULT_CONNECTIONS
from diloco.wire.messages import (
    Join,
    LearnerMessage,
    Progress,
    PullHeader,
    PullRequest,
    PushHeader,
    PushReceipt,
    Welcome,
)
from diloco.wire.server.handler import Send
from diloco.wire.server.server import ServerOptions, SyncServer
from diloco.wire.tls.tls import Peer, ServerTls

CHUNK_BYTES: Final = 1 << 20
ORDER: Final = struct.Struct("<cQ")
PUSH, PULL, DONE = b"u", b"d", b"k"
PEAK: Final = "peak"
_HEADER: Final = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class Far:
    """What the far side serves."""

    plain: bool
    payload_bytes: int
    """The most that our server receives."""
    tls: ServerTls | None
    host: str = "127.0.0.1"


def serve(far: Far, pipe: Connection) -> None:
    """Tell the port, then serve until the pipe ends."""
    keep_freed_memory()
    if far.plain:
        _serve_plain(far, pipe)
    else:
        asyncio.run(_serve_wire(far, pipe))


def fill(connection: socket.socket, view: memoryview) -> None:
    """Receive as many bytes as the view has."""
    while len(view) > 0:
        count = connection.recv_into(view)
        if count == 0:
            raise ConnectionResetError
        view = view[count:]


def send(connection: socket.socket, payload: memoryview) -> None:
    """Send a payload in chunks, each with its digest."""
    for offset in range(0, len(payload), CHUNK_BYTES):
        data = payload[offset : offset + CHUNK_BYTES]
        connection.sendall(_HEADER.pack(offset, xxhash.xxh3_64_intdigest(data)))
        connection.sendall(data)


def receive(connection: socket.socket, payload: memoryview) -> None:
    """Receive a payload and check it."""
    header = bytearray(_HEADER.size)
    for offset in range(0, len(payload), CHUNK_BYTES):
        fill(connection, memoryview(header))
        data = payload[offset : offset + CHUNK_BYTES]
        fill(connection, data)
        if _HEADER.unpack(header) != (offset, xxhash.xxh3_64_intdigest(data)):
            raise ValueError(f"the chunk at offset {offset} came wrong")


def memory_bytes(field: str) -> int:
    """``VmRSS`` or ``VmHWM`` of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def forget_peak() -> None:
    """Let ``VmHWM`` begin again from what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def _serve_plain(far: Far, pipe: Connection) -> None:
    context = None
    if far.tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(far.tls.certificate, far.tls.key)
        context.load_verify_locations(far.tls.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    listener = socket.create_server((far.host, 0))

    def accept() -> None:
        while True:
            connection: socket.socket = listener.accept()[0]
            if context is not None:
                connection = context.wrap_socket(connection, server_side=True)
            threading.Thread(target=_serve_one, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    pipe.send(listener.getsockname()[1])
    with contextlib.suppress(EOFError):
        pipe.recv()


def _serve_one(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    order = bytearray(ORDER.size)
    payload = memoryview(bytearray())
    with contextlib.suppress(OSError):
        while True:
            fill(connection, memoryview(order))
            kind, size = ORDER.unpack(order)
            if len(payload) != size:
                payload = memoryview(bytearray(size))
            if kind == PUSH:
                receive(connection, payload)
                connection.sendall(DONE)
            else:
                send(connection, payload)


class _OneBuffer:
    """A ``SyncHandler`` with one buffer: pushes go to its beginning, a pull gets as many bytes as its fragment says."""

    def __init__(self, payload_bytes: int) -> None:
        self.payload = bytearray(payload_bytes)

    async def session(self, join: Join, peer: Peer, inbound: AsyncIterator[LearnerMessage], send: Send) -> None:
        """Say how transfers are made, then answer every message at once."""
        del join, peer
        send(Welcome(1, "1", (), (), 0, 0, Progress(0, 1, 0), connections=DEFAULT_CONNECTIONS))
        async for _ in inbound:
            send(Progress(0, 1, 0))

    def accept_push(self, header: PushHeader, peer: Peer, abandon: Callable[[], None]) -> memoryview:
        del peer, abandon
        return memoryview(self.payload)[: header.payload_bytes]

    def push_unwanted(self, header: PushHeader) -> str | None:
        del header
        return None

    async def pushed(self, header: PushHeader) -> PushReceipt:
        del header
        return PushReceipt(accepted=True)

    def push_failed(self, header: PushHeader, reason: str) -> None:
        """The benchmark is void, and its client says so."""

    async def open_pull(self, request: PullRequest, peer: Peer) -> tuple[PullHeader, memoryview]:
        del peer
        return PullHeader(request.fragment, 1, request.fragment), memoryview(self.payload)[: request.fragment]


async def _serve_wire(far: Far, pipe: Connection) -> None:
    """Each message resizes the buffer, or asks for the memory that was taken since the one before."""
    handler = _OneBuffer(far.payload_bytes)
    server = SyncServer(handler, ServerOptions(f"{far.host}:0", tls=far.tls))
    pipe.send(await server.start())
    before = 0
    with contextlib.suppress(EOFError):
        while True:
            message = await asyncio.to_thread(pipe.recv)
            if message == PEAK:
                pipe.send(memory_bytes("VmHWM") - before)
            else:
                before = memory_bytes("VmRSS")
                forget_peak()
                handler.payload = bytearray(message)
                pipe.send(before)
    await server.stop(0)
