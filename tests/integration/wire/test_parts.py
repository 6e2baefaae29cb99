"""Transfers in parts over several connections: whole, cut in the middle, stalled, refused, withdrawn."""

import dataclasses
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from diloco.wire.client import ClientOptions, SyncClient
from diloco.wire.convert import pack
from diloco.wire.errors import ClosedError, DeadlineError, RefusedError, UnavailableError
from diloco.wire.messages import Join, Progress, PullHeader, PushHeader, Welcome
from diloco.wire.posting import Posting
from testbed.kind.waiting import wait_until
from tests.integration.wire.calls import JOIN, PAYLOAD, REQUEST
from tests.support.raw_wire import RawClient, ending, push_header
from tests.support.tcp_proxy import TcpProxy
from tests.support.wire_syncer import Keeper, RunningServer

CONNECTIONS = 8
PART_BYTES = 64 << 10
"""Of `PAYLOAD`, for so many connections."""
LONGEST_PART_BYTES = PART_BYTES + 64


@pytest.fixture(autouse=True)
def _in_parts(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper.connections = CONNECTIONS
    monkeypatch.setattr("diloco.wire.parts._ROUND_TRIP_SECONDS", 1e-9)  # as over a long link


@contextmanager
def joined(address: str, join: Join = JOIN) -> Iterator[SyncClient]:
    """A client that has been welcomed."""
    with SyncClient(ClientOptions(address)) as client, client.open_session(join) as session:
        next(iter(session))
        yield client


def push(client: SyncClient, payload: bytes = PAYLOAD, **changes: object) -> bool:
    header: PushHeader = dataclasses.replace(push_header(len(payload)), **changes)  # type: ignore[arg-type] # fields
    return client.push(header, memoryview(payload), deadline_seconds=30).accepted


def pull(client: SyncClient) -> bytearray:
    buffer = bytearray(len(PAYLOAD))
    client.pull(REQUEST, lambda _: memoryview(buffer), deadline_seconds=30)
    return buffer


@pytest.mark.parametrize("size", [1, 64 << 10, (64 << 10) + 1, 3_000_001, 20 << 20])
def test_payloads_of_any_size_arrive(keeper: Keeper, server: RunningServer, size: int) -> None:
    payload = os.urandom(size)
    keeper.fragments[7] = payload
    with joined(server.address) as client:
        assert push(client, payload)
        buffer = bytearray(size)
        header = client.pull(REQUEST, lambda _: memoryview(buffer), deadline_seconds=30)
    ((_, received),) = keeper.pushes
    assert received == payload == buffer
    assert header.payload_bytes == size


def test_the_digest_of_what_was_received_is_known_on_both_sides(keeper: Keeper, server: RunningServer) -> None:
    with joined(server.address) as client:
        assert push(client)
        header = client.pull(REQUEST, lambda found: memoryview(bytearray(found.payload_bytes)), deadline_seconds=30)
    ((pushed, _),) = keeper.pushes
    assert pushed.payload_digest == header.payload_digest != b""


def test_a_transfer_uses_all_connections(server: RunningServer) -> None:
    with TcpProxy(server.address) as proxy, joined(proxy.address) as client:
        assert push(client)
        assert pull(client) == PAYLOAD
        wait_until(lambda: proxy.connections == 1 + CONNECTIONS, "all are open")


def test_a_syncer_that_takes_no_parts_gets_the_old_calls(keeper: Keeper, server: RunningServer) -> None:
    keeper.connections = 0
    with TcpProxy(server.address) as proxy, joined(proxy.address) as client:
        assert push(client)
        assert pull(client) == PAYLOAD
        assert proxy.connections <= 1 + ClientOptions(proxy.address).bulk_channels


def test_a_push_that_is_cut_goes_on_where_it_was(keeper: Keeper, server: RunningServer) -> None:
    with TcpProxy(server.address) as proxy, joined(proxy.address) as client:
        proxy.cut_after_bytes(len(PAYLOAD) // 2, not_before=keeper.accepted)
        assert push(client)
        assert proxy.was_cut.is_set()
    assert keeper.failed == []
    ((_, received),) = keeper.pushes
    assert received == PAYLOAD
    # What was read of a part that was cut is no message yet: so it is at most one part for each connection.
    (region,) = server.traffic.read()
    assert region.up.bulk + region.up.again <= len(PAYLOAD) + CONNECTIONS * LONGEST_PART_BYTES


def test_a_pull_that_is_cut_goes_on_where_it_was(server: RunningServer) -> None:
    allocated: list[PullHeader] = []
    buffer = bytearray(len(PAYLOAD))

    def allocate(header: PullHeader) -> memoryview:
        allocated.append(header)
        return memoryview(buffer)

    with TcpProxy(server.address) as proxy, joined(proxy.address) as client:
        proxy.cut_after_bytes(len(PAYLOAD) // 2)
        client.pull(REQUEST, allocate, deadline_seconds=30)
        assert proxy.was_cut.is_set()
    assert buffer == PAYLOAD
    assert len(allocated) == 1


@pytest.mark.parametrize("what", ["push", "pull"])
def test_one_stalled_connection_of_eight_holds_nothing_up(keeper: Keeper, server: RunningServer, what: str) -> None:
    with TcpProxy(server.address) as proxy, joined(proxy.address) as client:
        push(client, attempt=9)  # opens every connection
        proxy.stall_one_after_bytes(2 * PART_BYTES)
        if what == "push":
            assert push(client)
            assert keeper.pushes[-1][1] == PAYLOAD
        else:
            assert pull(client) == PAYLOAD
        assert proxy.stalled.is_set()


def test_a_receipt_that_was_lost_is_given_again(keeper: Keeper, server: RunningServer) -> None:
    with joined(server.address) as client:
        assert push(client)
        assert push(client)
    assert len(keeper.pushes) == 1


def test_a_push_that_is_refused_is_refused_at_once(keeper: Keeper, server: RunningServer) -> None:
    keeper.refuse_pushes = "not now"
    with joined(server.address) as client, pytest.raises(RefusedError, match=r"^not now$"):
        push(client)
    keeper.refuse_pushes = ""


def test_every_connection_of_a_push_is_told_why_it_is_refused(keeper: Keeper, server: RunningServer) -> None:
    # The learner reports the answer that arrives first, and a refusal for a false claim ends the session.
    header = dataclasses.replace(push_header(len(PAYLOAD)), part_bytes=PART_BYTES)
    with RawClient(server.address) as one, RawClient(server.address) as two:

        def told(client: RawClient, asked: PushHeader) -> str:
            return ending(client.parts([pack(asked)]))[1]

        keeper.refuse_pushes = "it claims too much"
        assert told(one, header) == "it claims too much"
        keeper.refuse_pushes = "its session is over"
        assert told(two, header) == "it claims too much"
        assert told(two, dataclasses.replace(header, steps=header.steps + 1)) == "its session is over"
    keeper.refuse_pushes = ""


def test_a_push_that_was_refused_may_be_sent_again_later(keeper: Keeper, server: RunningServer) -> None:
    keeper.refuse_pushes = "another push is under way"
    header = dataclasses.replace(push_header(len(PAYLOAD)), part_bytes=PART_BYTES)
    with RawClient(server.address) as raw:

        def reason() -> str:
            return ending(raw.parts([pack(header)]))[1]

        assert reason() == "another push is under way"
        keeper.refuse_pushes = "asked anew"
        deadline = time.monotonic() + 30
        while reason() != "asked anew":
            assert time.monotonic() < deadline
            time.sleep(0.05)
    keeper.refuse_pushes = ""


def test_a_posted_pull_is_withdrawn_on_all_connections(keeper: Keeper, server: RunningServer) -> None:
    keeper.holds_pulls = True
    posting = Posting()
    with joined(server.address) as client:
        ended: list[Exception] = []

        def wait_for_it() -> None:
            try:
                client.pull_posted(REQUEST, lambda _: memoryview(b""), deadline_seconds=30, posting=posting)
            except ClosedError as error:
                ended.append(error)

        thread = threading.Thread(target=wait_for_it)
        thread.start()
        assert keeper.pull_waits.wait(30)
        posting.withdraw()
        thread.join(30)
        assert keeper.pull_cancelled.wait(30)
    assert [str(error) for error in ended] == ["the pull was withdrawn"]


def test_a_pull_that_takes_too_long_ends_at_its_deadline(keeper: Keeper, server: RunningServer) -> None:
    keeper.holds_pulls = True
    with joined(server.address) as client, pytest.raises(DeadlineError, match=r"^it took longer than 0\.2 s$"):
        client.pull(REQUEST, lambda _: memoryview(b""), deadline_seconds=0.2)


def test_a_closed_client_ends_its_transfers(keeper: Keeper, server: RunningServer) -> None:
    keeper.holds_pulls = True
    with joined(server.address) as client:

        def close() -> None:
            keeper.pull_waits.wait(30)
            client.close()

        thread = threading.Thread(target=close)
        thread.start()
        with pytest.raises(ClosedError, match=r"^the client is closed$"):
            pull(client)
        thread.join()
        with pytest.raises(ClosedError, match=r"^the client is closed$"):
            pull(client)


def test_an_error_of_the_callers_own_function_ends_the_pull(server: RunningServer) -> None:
    def too_small(_: object) -> memoryview:
        raise MemoryError("there is no room")

    with joined(server.address) as client, pytest.raises(MemoryError, match="there is no room"):
        client.pull(REQUEST, too_small, deadline_seconds=30)


def test_no_syncer_is_told_after_a_while() -> None:
    welcome = Welcome(1, "epoch", (), (), 0, 0, Progress(0, 1, 0), connections=CONNECTIONS)
    with SyncClient(ClientOptions("127.0.0.1:1")) as client:
        client._welcomed(welcome)
        with pytest.raises(UnavailableError):
            push(client)
