"""The peers of the link benchmark: plain TCP connections that share a payload, and the far side as a process.

``python link_peers.py CONFIG`` (JSON) prints its port and serves until its input ends: our server, or plain TCP.
Both kinds check every chunk with XXH3-64, and ours also hashes the whole, as for the syncer.
"""

import asyncio
import contextlib
import json
import socket
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import xxhash

from diloco.wire.messages import (
    PullHeader,
    PullRequest,
    PushHeader,
)
from diloco.wire.server import ServerOptions, SyncServer
from diloco.wire.tls import Peer, ServerTls
from wire_peers import OneBuffer

CHUNK_BYTES: Final = 1 << 20
_HEADER: Final = struct.Struct("<QQ")
_ORDER: Final = struct.Struct("<cQ")
_PUSH: Final = b"u"
_PULL: Final = b"d"
_DONE: Final = b"k"


def _fill(connection: socket.socket, view: memoryview) -> None:
    while len(view) > 0:
        count = connection.recv_into(view)
        if count == 0:
            raise ConnectionResetError
        view = view[count:]


def _send(connection: socket.socket, payload: memoryview) -> None:
    for offset in range(0, len(payload), CHUNK_BYTES):
        data = payload[offset : offset + CHUNK_BYTES]
        connection.sendall(_HEADER.pack(offset, xxhash.xxh3_64_intdigest(data)))
        connection.sendall(data)


def _receive(connection: socket.socket, payload: memoryview) -> None:
    header = bytearray(_HEADER.size)
    for offset in range(0, len(payload), CHUNK_BYTES):
        _fill(connection, memoryview(header))
        data = payload[offset : offset + CHUNK_BYTES]
        _fill(connection, data)
        if _HEADER.unpack(header) != (offset, xxhash.xxh3_64_intdigest(data)):
            raise ValueError(f"the chunk at offset {offset} came wrong")


class PlainConnections:
    """Some plain TCP connections, each with a thread, which carry equal slices of a payload at once."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        self._connections = [socket.create_connection(address) for _ in range(count)]
        for connection in self._connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._threads = ThreadPoolExecutor(count)

    def push(self, payload: memoryview) -> None:
        """Send the payload; returns when it is there and checked."""
        self._share(self._push, payload)

    def pull(self, payload: memoryview) -> None:
        """Receive and check as many bytes."""
        self._share(self._pull, payload)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            connection.close()
        self._threads.shutdown()

    def _share(self, work: Callable[[socket.socket, memoryview], None], payload: memoryview) -> None:
        size = -(-len(payload) // len(self._connections))
        slices: Sequence[memoryview] = [payload[at : at + size] for at in range(0, len(payload), size)]
        list(self._threads.map(work, self._connections, slices))

    @staticmethod
    def _push(connection: socket.socket, payload: memoryview) -> None:
        connection.sendall(_ORDER.pack(_PUSH, len(payload)))
        _send(connection, payload)
        _fill(connection, memoryview(bytearray(1)))

    @staticmethod
    def _pull(connection: socket.socket, payload: memoryview) -> None:
        connection.sendall(_ORDER.pack(_PULL, len(payload)))
        _receive(connection, payload)


def _serve_one(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    order = bytearray(_ORDER.size)
    payload = memoryview(bytearray())
    with contextlib.suppress(OSError):
        while True:
            _fill(connection, memoryview(order))
            kind, size = _ORDER.unpack(order)
            if len(payload) != size:
                payload = memoryview(bytearray(size))
            if kind == _PUSH:
                _receive(connection, payload)
                connection.sendall(_DONE)
            else:
                _send(connection, payload)


def _serve_plain(host: str) -> None:
    listener = socket.create_server((host, 0))

    def accept() -> None:
        while True:
            threading.Thread(target=_serve_one, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()


class AnySize(OneBuffer):
    """Takes pushes of any size up to its buffer's, and sends as many bytes as a pull has for its fragment."""

    def accept_push(self, header: PushHeader, peer: Peer, abandon: Callable[[], None]) -> memoryview:
        """The beginning of the buffer."""
        del peer, abandon
        return memoryview(self.payload)[: header.payload_bytes]

    async def open_pull(self, request: PullRequest, peer: Peer) -> tuple[PullHeader, memoryview]:
        """The beginning of the buffer."""
        del peer
        return PullHeader(request.fragment, 1, request.fragment), memoryview(self.payload)[: request.fragment]


async def _serve_wire(host: str, config: dict[str, Any]) -> None:
    handler = AnySize()
    handler.payload = bytearray(config["payload_bytes"])
    tls = ServerTls(*map(Path, config["tls"]))
    server = SyncServer(handler, ServerOptions(f"{host}:0", tls=tls))
    sys.stdout.write(f"{await server.start()}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    _config = json.loads(sys.argv[1])
    if _config["tls"]:
        asyncio.run(_serve_wire(_config["host"], _config))
    else:
        _serve_plain(_config["host"])
