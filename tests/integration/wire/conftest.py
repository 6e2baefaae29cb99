"""A server with checks after each test: it serves a well-behaved learner, and has logged no traceback.

Nothing is left over either: no buffer in use, no error of its event loop.
"""

import logging
from collections.abc import Iterator

import pytest

from diloco.wire.client.client import ClientOptions
from diloco.wire.server.server import ServerOptions
from testbed.blocking_client import BlockingClient
from tests.integration.wire.calls import CONNECTIONS, JOIN, PAYLOAD, STALL_SECONDS, push
from tests.support.raw_wire import RawClient
from tests.support.tcp_proxy import TcpProxy
from tests.support.wire_syncer import Keeper, RunningServer


@pytest.fixture
def keeper() -> Keeper:
    return Keeper({7: PAYLOAD})


@pytest.fixture
def server(keeper: Keeper, caplog: pytest.LogCaptureFixture) -> Iterator[RunningServer]:
    caplog.set_level(logging.INFO)
    with RunningServer(keeper, ServerOptions("127.0.0.1:0", stall_seconds=STALL_SECONDS)) as running:
        yield running
        with BlockingClient(ClientOptions(running.address)) as client, client.open_session(JOIN) as session:
            next(iter(session))
            push(client, b"1234", fragment=9)
    assert running.loop_complaints == []
    assert keeper.buffers_in_use == 0
    for record in caplog.get_records("call") + caplog.records:
        assert record.exc_info is None, record
        assert "\n" not in record.getMessage()
        assert record.levelno < logging.ERROR, record


@pytest.fixture
def raw(server: RunningServer) -> Iterator[RawClient]:
    with RawClient(server.address) as made:
        yield made


@pytest.fixture
def client(server: RunningServer) -> Iterator[BlockingClient]:
    with BlockingClient(ClientOptions(server.address)) as made:
        yield made


@pytest.fixture
def proxy(keeper: Keeper, server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[TcpProxy]:
    """A relay to the server, over which transfers have several connections."""
    keeper.connections = CONNECTIONS
    monkeypatch.setattr("diloco.wire.parts._ROUND_TRIP_SECONDS", 1e-9)  # as over a long link
    with TcpProxy(server.address) as made:
        yield made


@pytest.fixture
def joined(proxy: TcpProxy) -> Iterator[BlockingClient]:
    """A client by way of the relay. It has been welcomed, which holds for transfers with or without a session."""
    with BlockingClient(ClientOptions(proxy.address)) as made:
        with made.open_session(JOIN) as session:
            next(iter(session))
        yield made
