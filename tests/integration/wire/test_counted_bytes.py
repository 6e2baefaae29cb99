"""What the server counts by region, direction and kind: of whole transfers, of transfers that are cut, of sessions."""

import contextlib
from collections.abc import Iterator

import pytest

from diloco.wire.client import ClientOptions, SyncClient
from diloco.wire.convert import pack, pack_learner
from diloco.wire.errors import UnavailableError
from diloco.wire.messages import Alive, LearnerMessage, Leave
from tests.integration.wire.calls import JOIN, PAYLOAD, REQUEST
from tests.support.raw_wire import push_header
from tests.support.tcp_proxy import TcpProxy
from tests.support.wire_syncer import Keeper, RunningServer

CHUNKED = len(PAYLOAD) + 16 * 8
"""The payload in chunks of 1 MiB, each with a header of 16 bytes."""
HEADER = push_header(len(PAYLOAD))


def test_whole_transfers_are_bulk_and_what_announces_them_control(server: RunningServer, client: SyncClient) -> None:
    client.push(HEADER, memoryview(PAYLOAD), deadline_seconds=30)
    (region,) = server.traffic.read()
    assert (region.up.bulk, region.up.control, region.up.again) == (CHUNKED, len(pack(HEADER)), 0)
    assert 0 < region.down.control < 100  # the receipt
    assert region.down.bulk == 0
    client.pull(REQUEST, lambda _: memoryview(bytearray(len(PAYLOAD))), deadline_seconds=30)
    (after,) = server.traffic.read()
    assert (after.down.bulk, after.down.again) == (CHUNKED, 0)
    assert after.up.control == region.up.control + len(pack(REQUEST))


def test_messages_of_a_session_are_control(keeper: Keeper, server: RunningServer, client: SyncClient) -> None:
    said: list[LearnerMessage] = [Alive(1), Leave(1, "done")]
    with client.open_session(JOIN) as session:
        for message in said:
            session.send(message)
        told = list(session)
    assert keeper.session_ended.wait(30)
    (region,) = server.traffic.read()
    assert region.up.control == sum(len(pack_learner(message)) for message in (JOIN, *said))
    assert region.down.control >= 2 * len(told)
    assert (region.up.bulk, region.down.bulk) == (0, 0)


def test_a_push_that_was_cut_is_counted_apart(keeper: Keeper, server: RunningServer) -> None:
    with TcpProxy(server.address) as proxy, SyncClient(ClientOptions(proxy.address)) as client:
        proxy.cut_after_bytes(len(PAYLOAD) // 2, not_before=keeper.accepted)
        with pytest.raises(UnavailableError):
            client.push(HEADER, memoryview(PAYLOAD), deadline_seconds=30)
        assert keeper.push_ended.wait(30)
    (region,) = server.traffic.read()
    assert region.up.bulk == 0
    assert 0 < region.up.again < CHUNKED


def test_a_pull_that_was_cut_is_counted_apart(server: RunningServer) -> None:
    buffer = memoryview(bytearray(len(PAYLOAD)))
    with TcpProxy(server.address) as proxy, SyncClient(ClientOptions(proxy.address)) as client:
        # Early: what fits into the window of the connection counts as sent, and here that must not be all that is left.
        proxy.cut_after_bytes(len(PAYLOAD) // 8)
        with pytest.raises(UnavailableError):
            client.pull(REQUEST, lambda _: buffer, deadline_seconds=30)
        whole = False
        while not whole:  # the first attempts may meet the connection that is being closed
            with contextlib.suppress(UnavailableError):
                client.pull(REQUEST, lambda _: buffer, deadline_seconds=30)
                whole = True
    (region,) = server.traffic.read()
    assert region.down.bulk == CHUNKED
    assert region.down.again > 0


def test_a_push_that_is_not_wanted_counts_as_control_alone(keeper: Keeper, server: RunningServer) -> None:
    keeper.refuse_pushes = "not wanted"
    with SyncClient(ClientOptions(server.address)) as client, pytest.raises(Exception, match="not wanted"):
        client.push(HEADER, memoryview(PAYLOAD), deadline_seconds=30)
    keeper.refuse_pushes = ""
    (region,) = server.traffic.read()
    assert region.up.control == len(pack(HEADER))
    assert (region.up.bulk, region.up.again) == (0, 0)


CONNECTIONS = 8
PARTS = len(PAYLOAD) + 16 * 128
"""The payload in parts of 64 KiB, each with a header of 16 bytes."""


@pytest.fixture
def joined(
    keeper: Keeper, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[SyncClient, TcpProxy]]:
    """A client that has been welcomed and transfers in parts, and what its connections go through."""
    keeper.connections = CONNECTIONS
    monkeypatch.setattr("diloco.wire.parts._ROUND_TRIP_SECONDS", 1e-9)  # as over a long link
    with (
        TcpProxy(server.address) as proxy,
        SyncClient(ClientOptions(proxy.address)) as client,
        client.open_session(JOIN) as session,
    ):
        next(iter(session))
        yield client, proxy


def test_parts_are_bulk_and_what_is_said_about_them_control(
    server: RunningServer, joined: tuple[SyncClient, TcpProxy]
) -> None:
    client, _ = joined
    client.push(HEADER, memoryview(PAYLOAD), deadline_seconds=30)
    client.pull(REQUEST, lambda _: memoryview(bytearray(len(PAYLOAD))), deadline_seconds=30)
    (region,) = server.traffic.read()
    assert (region.up.bulk, region.up.again) == (PARTS, 0)
    assert (region.down.bulk, region.down.again) == (PARTS, 0)
    assert CONNECTIONS * len(pack(HEADER)) < region.up.control < PARTS // 100
    assert 0 < region.down.control < PARTS // 100


def test_parts_that_pass_again_after_a_cut_are_counted_apart(
    keeper: Keeper, server: RunningServer, joined: tuple[SyncClient, TcpProxy]
) -> None:
    client, proxy = joined
    proxy.cut_after_bytes(len(PAYLOAD) // 2, not_before=keeper.accepted)
    client.push(HEADER, memoryview(PAYLOAD), deadline_seconds=30)
    (region,) = server.traffic.read()
    assert region.up.bulk == PARTS
    proxy.cut_after_bytes(len(PAYLOAD) // 2)
    client.pull(REQUEST, lambda _: memoryview(bytearray(len(PAYLOAD))), deadline_seconds=30)
    (region,) = server.traffic.read()
    assert region.down.bulk == PARTS
    assert region.down.again > 0, "what was under way when the connections broke"


def test_a_pull_of_what_was_pulled_before_is_sent_again(
    server: RunningServer, joined: tuple[SyncClient, TcpProxy]
) -> None:
    client, _ = joined
    for _ in range(2):
        client.pull(REQUEST, lambda _: memoryview(bytearray(len(PAYLOAD))), deadline_seconds=30)
    (region,) = server.traffic.read()
    assert (region.down.bulk, region.down.again) == (PARTS, PARTS)
