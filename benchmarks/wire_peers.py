"""The far side of the wire benchmark, a process of its own: our server, or one plain TCP connection.

``python wire_peers.py CONFIG`` (JSON) prints its port, then answers lines on stdin with lines of JSON. Both kinds
receive into one buffer made beforehand, check every chunk with XXH3-64 and hash the whole with XXH3-128.
"""

import asyncio
import json
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import xxhash

from diloco.wire.channel import DEFAULT_CONNECTIONS
from diloco.wire.handler import Send
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
from diloco.wire.server import ServerOptions, SyncServer
from diloco.wire.tls import Peer, ServerTls

CHUNK_BYTES = 1 << 20
_HEADER = struct.Struct("<QQ")
_PUSH, _PULL = b"u", b"d"


class PlainPeer:
    """Either end of the plain connection."""

    def __init__(self, connection: socket.socket, payload: memoryview) -> None:
        self._connection = connection
        self._payload = payload
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def push(self) -> None:
        """Client: send the payload, wait until it is there and checked."""
        self._connection.sendall(_PUSH)
        self._send()
        self._fill(memoryview(bytearray(1)))

    def pull(self) -> None:
        """Client: ask for the payload, receive and check it."""
        self._connection.sendall(_PULL)
        self._receive()

    def serve(self) -> None:
        """Server: answer until the connection ends."""
        wish = bytearray(1)
        try:
            while True:
                self._fill(memoryview(wish))
                if wish == _PUSH:
                    self._receive()
                    self._connection.sendall(b"k")
                else:
                    self._send()
        except ConnectionError:
            return

    def _send(self) -> None:
        for offset in range(0, len(self._payload), CHUNK_BYTES):
            data = self._payload[offset : offset + CHUNK_BYTES]
            self._connection.sendall(_HEADER.pack(offset, xxhash.xxh3_64_intdigest(data)))
            self._connection.sendall(data)

    def _receive(self) -> None:
        header = bytearray(_HEADER.size)
        digest = xxhash.xxh3_128()
        for offset in range(0, len(self._payload), CHUNK_BYTES):
            self._fill(memoryview(header))
            data = self._payload[offset : offset + CHUNK_BYTES]
            self._fill(data)
            if _HEADER.unpack(header) != (offset, xxhash.xxh3_64_intdigest(data)):
                raise ValueError(f"the chunk at offset {offset} came wrong")
            digest.update(data)
        digest.digest()

    def _fill(self, view: memoryview) -> None:
        while len(view) > 0:
            count = self._connection.recv_into(view)
            if count == 0:
                raise ConnectionResetError
            view = view[count:]


class OneBuffer:
    """A ``SyncHandler`` that receives every push into, and serves every pull from, one buffer."""

    def __init__(self) -> None:
        self.payload = bytearray()

    async def session(self, join: Join, peer: Peer, inbound: AsyncIterator[LearnerMessage], send: Send) -> None:
        """Offer transfers in parts, then answer every message at once."""
        del join, peer
        send(Welcome(1, "1", (), (), 0, 0, Progress(0, 1, 0), connections=DEFAULT_CONNECTIONS))
        async for _ in inbound:
            send(Progress(0, 1, 0))

    def accept_push(self, header: PushHeader, peer: Peer, abandon: Callable[[], None]) -> memoryview:
        """The buffer."""
        del header, peer, abandon
        return memoryview(self.payload)

    def push_unwanted(self, header: PushHeader) -> str | None:
        """Everything is wanted."""
        del header
        return None

    async def pushed(self, header: PushHeader) -> PushReceipt:
        """Whole."""
        del header
        return PushReceipt(accepted=True)

    def push_failed(self, header: PushHeader, reason: str) -> None:
        """Not whole: the benchmark is void, and its client says so."""

    async def open_pull(self, request: PullRequest, peer: Peer) -> tuple[PullHeader, memoryview]:
        """The buffer."""
        del peer
        return PullHeader(request.fragment, 1, len(self.payload)), memoryview(self.payload)


def memory_bytes(field: str) -> int:
    """``VmRSS`` or ``VmHWM`` of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def forget_peak() -> None:
    """Let ``VmHWM`` begin again from what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def _tls_files(config: dict[str, Any]) -> ServerTls | None:
    return ServerTls(*map(Path, config["tls"])) if config["tls"] else None


def serve_plain(config: dict[str, Any]) -> None:
    """One connection, then the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        connection: socket.socket = listener.accept()[0]
    tls = _tls_files(config)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key)
        context.load_verify_locations(tls.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        connection = context.wrap_socket(connection, server_side=True)
    PlainPeer(connection, memoryview(bytearray(config["payload_bytes"]))).serve()


async def serve_wire(config: dict[str, Any]) -> None:
    """Until stdin ends. Each line resizes the buffer, or says how much memory was taken since the one before."""
    handler = OneBuffer()
    handler.payload = bytearray(config["payload_bytes"])
    server = SyncServer(handler, ServerOptions("127.0.0.1:0", tls=_tls_files(config)))
    sys.stdout.write(f"{await server.start()}\n")
    sys.stdout.flush()
    before = 0
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if line == "peak":
            answer = memory_bytes("VmHWM") - before
        else:
            before = memory_bytes("VmRSS")
            forget_peak()
            handler.payload = bytearray(int(line))
            answer = before
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    await server.stop(0)


if __name__ == "__main__":
    _config = json.loads(sys.argv[1])
    if _config["plain"]:
        serve_plain(_config)
    else:
        asyncio.run(serve_wire(_config))
