"""Pings: idle connections for parts outlast load balancers, and a peer that pings without end is cut off."""

import socket
import struct

from diloco.wire.client import ClientOptions, SyncClient
from tests.integration.wire.calls import JOIN, PAYLOAD, REQUEST
from tests.support.tls_proxies import IdleProxy
from tests.support.wire_syncer import Keeper, RunningServer

_SETTINGS, _PING = 4, 6
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, body: bytes = b"") -> bytes:
    """A frame of the connection itself (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(body))[1:] + bytes([kind, 0]) + bytes(4) + body


def test_a_peer_that_pings_without_end_is_cut_off(server: RunningServer) -> None:
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as peer:
        # In one piece, which the syncer reads at once: of what it has not read the system tells by a reset.
        peer.sendall(PREFACE + frame(_SETTINGS) + 6 * frame(_PING, bytes(8)))
        said = b""
        while received := peer.recv(1 << 16):
            said += received
    assert b"too_many_pings" in said


def test_idle_connections_for_parts_outlast_a_load_balancer(keeper: Keeper, server: RunningServer) -> None:
    keeper.connections = 8
    with (
        IdleProxy(server.address, idle_seconds=1.2) as proxy,
        SyncClient(ClientOptions(proxy.address, keepalive_seconds=0.2)) as client,
        client.open_session(JOIN) as session,
    ):
        next(iter(session))
        for _ in range(2):
            client.pull(REQUEST, lambda _: memoryview(bytearray(len(PAYLOAD))), deadline_seconds=30)
            proxy.outlasted.clear()
            assert proxy.outlasted.wait(timeout=30), "nobody says anything for more than twice the idle timeout"
        assert not proxy.dropped.acquire(blocking=False)
