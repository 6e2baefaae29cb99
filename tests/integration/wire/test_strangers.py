"""Calls that send nothing: which are ended, and which never are."""

import logging
import time
from collections.abc import Iterator

import grpc
import pytest

from diloco.wire.client import ClientOptions, SyncClient
from diloco.wire.errors import UnavailableError, error_of
from diloco.wire.server import ServerOptions
from diloco.wire.strangers import MOST_STRANGERS
from tests.integration.wire.calls import JOIN
from tests.support.raw_http2 import RawConnection
from tests.support.raw_wire import RawClient, ending, push_header
from tests.support.wire_syncer import Keeper, RunningServer

HEALTH = "/grpc.health.v1.Health/Check"
PATHS = [f"/diloco.wire.v1.Sync/{name}" for name in ("Session", "PushFragment", "PullFragment")] + [HEALTH]


@pytest.fixture
def server(caplog: pytest.LogCaptureFixture) -> Iterator[RunningServer]:
    caplog.set_level(logging.INFO)
    with RunningServer(Keeper(), ServerOptions("127.0.0.1:0", connections=16)) as running:
        yield running
    assert running.loop_complaints == []


@pytest.mark.parametrize("path", PATHS)
def test_calls_that_say_nothing_leave_room_for_a_learner(server: RunningServer, path: str) -> None:
    strangers = server.server.strangers
    connections = [RawConnection(server.address) for _ in range(6)]
    try:
        for connection in connections:
            for _ in range(30):
                connection.begin_message(path, 1000, 900)
        with SyncClient(ClientOptions(server.address)) as client:
            assert any(_serves(client) for _ in range(100))
        assert all(any(connection.ended(stream, 30) for stream in (1, 3, 5)) for connection in connections)
        assert strangers.waiting <= MOST_STRANGERS
        assert strangers.turned_away > 0
    finally:
        for connection in connections:
            connection.close()


def _serves(client: SyncClient) -> bool:
    """Whether it admits the learner and accepts its push in this attempt; gRPC may reject a call for now."""
    time.sleep(0.05)
    try:
        with client.open_session(JOIN) as session:
            next(iter(session))
            return client.push(push_header(4), memoryview(b"1234"), deadline_seconds=30).accepted
    except UnavailableError:
        return False


def test_a_message_above_the_limit_is_refused_before_it_is_held(server: RunningServer) -> None:
    with RawConnection(server.address) as connection:
        stream = connection.call(PATHS[1])
        connection.send(stream, b"\0\0\x20\0\0" + bytes(1000), give_up_seconds=30)
        assert connection.ended(stream, 30)


def test_connections_above_the_limit_are_closed(server: RunningServer) -> None:
    connections = [RawConnection(server.address) for _ in range(24)]
    try:
        # Those that came first may stay.
        assert all(connection.closed.wait(30) for connection in connections[16:])
        assert not any(connection.closed.is_set() for connection in connections[:15])
    finally:
        for connection in connections:
            connection.close()


def test_a_push_that_nobody_waits_for_lets_go_of_its_buffer_at_once() -> None:
    keeper = Keeper()
    with RunningServer(keeper) as server, RawClient(server.address) as raw:
        keeper.unwanted = "its round is over"
        pushing = raw.half_open_push(push_header(1000))
        assert keeper.accepted.wait(30)
        assert keeper.buffers_in_use == 1
        server.call_soon(keeper.abandon)
        assert keeper.push_ended.wait(30)
        assert keeper.buffers_in_use == 0
        assert ending(pushing) == (grpc.StatusCode.FAILED_PRECONDITION, "its round is over")


def test_a_server_that_is_busy_is_tried_again() -> None:
    told = error_of(grpc.StatusCode.RESOURCE_EXHAUSTED, "Too many pending requests for this server")
    assert isinstance(told, UnavailableError)
