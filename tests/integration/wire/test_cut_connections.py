"""A connection that is cut ends its own call or session, and the next one gets through."""

import contextlib
from collections.abc import Callable

import pytest

from diloco.wire.client import ClientOptions, SyncClient
from diloco.wire.errors import UnavailableError
from diloco.wire.messages import Alive
from tests.integration.wire.calls import JOIN, PAYLOAD, REQUEST
from tests.support.raw_wire import push_header
from tests.support.tcp_proxy import TcpProxy
from tests.support.wire_syncer import Keeper, RunningServer


def gets_through(call: Callable[[], object]) -> None:
    """Check that it succeeds again on its own; the first attempts may meet the connection that is being closed."""
    for _ in range(9):
        with contextlib.suppress(UnavailableError):
            call()
            return
    call()


def test_a_connection_cut_in_the_middle_of_a_push(keeper: Keeper, server: RunningServer) -> None:
    with TcpProxy(server.address) as proxy, SyncClient(ClientOptions(proxy.address)) as client:
        proxy.cut_after_bytes(len(PAYLOAD) // 2, not_before=keeper.accepted)
        with pytest.raises(UnavailableError):
            client.push(push_header(len(PAYLOAD)), memoryview(PAYLOAD), deadline_seconds=30)
        assert proxy.was_cut.is_set()
        assert keeper.push_ended.wait(30)
        ((header, reason),) = keeper.failed
        assert header == push_header(len(PAYLOAD))
        assert f"of {len(PAYLOAD)} bytes" in reason
        # The link is back: the same client gets the same fragment through.
        gets_through(lambda: client.push(push_header(len(PAYLOAD)), memoryview(PAYLOAD), deadline_seconds=30))
    assert [payload for _, payload in keeper.pushes] == [PAYLOAD]


def test_a_connection_cut_in_the_middle_of_a_pull(server: RunningServer) -> None:
    with TcpProxy(server.address) as proxy, SyncClient(ClientOptions(proxy.address)) as client:
        buffer = bytearray(len(PAYLOAD))
        proxy.cut_after_bytes(len(PAYLOAD) // 2)
        with pytest.raises(UnavailableError):
            client.pull(REQUEST, lambda _: memoryview(buffer), deadline_seconds=30)
        gets_through(lambda: client.pull(REQUEST, lambda _: memoryview(buffer), deadline_seconds=30))
        assert buffer == PAYLOAD


def test_a_session_cut_off_ends_for_both_sides(keeper: Keeper, server: RunningServer) -> None:
    with TcpProxy(server.address) as proxy, SyncClient(ClientOptions(proxy.address)) as client:
        session = client.open_session(JOIN)
        said = iter(session)
        next(said)
        proxy.cut()
        with pytest.raises(UnavailableError):
            list(said)
        assert keeper.session_ended.wait(30)
        with pytest.raises(UnavailableError):
            session.send(Alive(1))
        gets_through(lambda: next(iter(client.open_session(JOIN))))


def test_a_push_cut_off_leaves_the_session_of_its_learner_alone(keeper: Keeper, server: RunningServer) -> None:
    with SyncClient(ClientOptions(server.address)) as control, control.open_session(JOIN) as session:
        said = iter(session)
        next(said)
        with TcpProxy(server.address) as proxy, SyncClient(ClientOptions(proxy.address)) as bulk:
            proxy.cut_after_bytes(1 << 20, not_before=keeper.accepted)
            with pytest.raises(UnavailableError):
                bulk.push(push_header(len(PAYLOAD)), memoryview(PAYLOAD), deadline_seconds=30)
        assert keeper.push_ended.wait(30)
        session.send(Alive(1))
        assert next(said) is not None
