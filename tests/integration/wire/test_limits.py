"""What the server bounds before it knows who calls: messages, connections and pings. HTTP/2 is by hand (RFC 9113)."""

import contextlib
import logging
import socket
import struct
from collections.abc import Iterator

import pytest

from diloco.wire.server.server import ServerOptions
from tests.support.wire_syncer import Keeper, RunningServer

DATA, HEADERS, RESET, SETTINGS, PING = 0, 1, 3, 4, 6
END_STREAM, END_HEADERS = 1, 4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, body: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    """A frame; of stream 0 are those of the connection itself."""
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def field(name: str, value: str) -> bytes:
    """A header field, neither compressed nor to be remembered (RFC 7541, section 6.2.2)."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def connected(address: str, then: bytes = b"") -> socket.socket:
    """A connection that has begun, and has sent these frames in one piece with its beginning."""
    host, _, port = address.rpartition(":")
    made = socket.create_connection((host, int(port)), timeout=30)
    made.sendall(_PREFACE + frame(SETTINGS) + then)
    return made


@pytest.fixture
def server(caplog: pytest.LogCaptureFixture) -> Iterator[RunningServer]:
    caplog.set_level(logging.INFO)
    with RunningServer(Keeper(), ServerOptions("127.0.0.1:0", connections=16)) as running:
        yield running
    assert running.loop_complaints == []


def test_a_message_above_the_limit_is_refused_before_it_is_held(server: RunningServer) -> None:
    path = field(":path", "/diloco.wire.v1.Sync/PushParts")
    call = field(":method", "POST") + field(":scheme", "http") + path + field(":authority", "x")
    call += field("te", "trailers") + field("content-type", "application/grpc")
    with connected(server.address) as peer, peer.makefile("rb") as answers:
        # Of 2 MiB by its prefix, of which a kilobyte comes.
        peer.sendall(frame(HEADERS, call, END_HEADERS, 1) + frame(DATA, b"\0\0\x20\0\0" + bytes(1000), 0, 1))
        kind, flags = None, 0
        while kind != RESET and not (kind == HEADERS and flags & END_STREAM):
            head = answers.read(9)
            kind, flags = head[3], head[4]
            answers.read(int.from_bytes(head[:3], "big"))


def is_open(peer: socket.socket) -> bool:
    """Whether the server has not ended the connection so far."""
    peer.settimeout(0)
    with contextlib.suppress(ConnectionError):
        try:
            while peer.recv(1 << 16):
                pass
        except BlockingIOError:
            return True
    return False


def test_connections_above_the_limit_are_closed(server: RunningServer) -> None:
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connected(server.address)) for _ in range(24)]
        for peer in peers[16:]:
            with contextlib.suppress(ConnectionError):
                while peer.recv(1 << 16):
                    pass
        # Those that came first may stay.
        assert all(map(is_open, peers[:15]))


def test_a_peer_that_pings_without_end_is_cut_off(server: RunningServer) -> None:
    # In one piece, which the syncer reads at once: of what it has not read the system tells by a reset.
    with connected(server.address, 6 * frame(PING, bytes(8))) as peer:
        said = b""
        while received := peer.recv(1 << 16):
            said += received
    assert b"too_many_pings" in said
