"""A transfer that failed goes on in the next one, and what had arrived is not sent again. The link is cut for real."""

import dataclasses
import itertools
import os
import threading
from collections.abc import Iterator

import pytest

from diloco.wire.client import ClientOptions, SyncClient
from diloco.wire.errors import UnavailableError
from diloco.wire.messages import PullHeader, PullRequest, PushHeader
from tests.integration.wire.calls import JOIN, PAYLOAD, REQUEST
from tests.support.raw_wire import push_header
from tests.support.tcp_proxy import TcpProxy
from tests.support.wire_syncer import Keeper, RunningServer

CONNECTIONS = 8
LONGEST_PART_BYTES = (64 << 10) + 16
"""Of `PAYLOAD`, for so many connections."""
PARTS = 128
HEADER = push_header(len(PAYLOAD))


@pytest.fixture
def proxy(keeper: Keeper, server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[TcpProxy]:
    keeper.connections = CONNECTIONS
    monkeypatch.setattr("diloco.wire.parts._ROUND_TRIP_SECONDS", 1e-9)  # as over a long link
    with TcpProxy(server.address) as made:
        yield made


@pytest.fixture
def link(proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch) -> "Link":
    return Link(proxy, monkeypatch)


@pytest.fixture
def client(proxy: TcpProxy) -> Iterator[SyncClient]:
    with SyncClient(ClientOptions(proxy.address)) as made:
        with made.open_session(JOIN) as session:
            next(iter(session))  # the Welcome holds for later transfers, with or without a session
        yield made


def push(client: SyncClient, payload: bytes = PAYLOAD, **changes: object) -> None:
    header = dataclasses.replace(HEADER, **changes)  # type: ignore[arg-type]  # fields
    assert client.push(header, memoryview(payload), deadline_seconds=30).accepted


def pull(client: SyncClient, request: PullRequest = REQUEST, size: int = len(PAYLOAD)) -> bytearray:
    buffer = bytearray(size)
    client.pull(request, lambda _: memoryview(buffer), deadline_seconds=30)
    return buffer


class Link:
    """A link that is cut and mended. While it is cut a transfer fails soon, afterwards it has time to go on."""

    def __init__(self, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        self._proxy = proxy
        self._monkeypatch = monkeypatch

    def cut_after_bytes(self, count: int, not_before: threading.Event | None = None) -> None:
        self._monkeypatch.setattr("diloco.wire.client_parts._BROKEN_SECONDS", 0.2)
        self._proxy.for_good = True
        self._proxy.cut_after_bytes(count, not_before=not_before)

    def mend(self) -> None:
        assert self._proxy.was_cut.is_set()
        self._monkeypatch.setattr("diloco.wire.client_parts._BROKEN_SECONDS", 30.0)
        self._proxy.for_good = False


def count_parts(keeper: Keeper, count: int) -> threading.Event:
    """An event that is set when so many parts of pushes have arrived."""
    numbers, event = itertools.count(1), threading.Event()

    def unwanted(header: PushHeader) -> str | None:
        del header
        if next(numbers) >= count:
            event.set()
        return None

    keeper.push_unwanted = unwanted  # type: ignore[method-assign]  # it is asked for every part
    return event


def test_a_push_that_failed_goes_on_in_the_next_one(
    keeper: Keeper, server: RunningServer, link: Link, client: SyncClient
) -> None:
    arrived = count_parts(keeper, 3 * CONNECTIONS)
    link.cut_after_bytes(len(PAYLOAD) * 7 // 8, not_before=arrived)
    with pytest.raises(UnavailableError):
        push(client)
    assert arrived.is_set()
    link.mend()
    push(client)
    assert keeper.failed == []
    ((_, received),) = keeper.pushes
    assert received == PAYLOAD
    (region,) = server.traffic.read()
    assert region.up.bulk + region.up.again <= len(PAYLOAD) + CONNECTIONS * LONGEST_PART_BYTES


def test_a_push_of_another_version_starts_over(
    keeper: Keeper, server: RunningServer, link: Link, client: SyncClient
) -> None:
    link.cut_after_bytes(len(PAYLOAD) // 2)
    with pytest.raises(UnavailableError):
        push(client)
    server.call_soon(keeper.abandon)  # as a request for another version does
    assert keeper.push_ended.wait(30)
    link.mend()
    other = PAYLOAD[::-1]
    push(client, other, version=2)
    ((_, received),) = keeper.pushes
    assert received == other


def test_a_push_goes_on_from_nothing_if_the_syncer_gave_it_up(keeper: Keeper, link: Link, client: SyncClient) -> None:
    link.cut_after_bytes(len(PAYLOAD) // 2)
    with pytest.raises(UnavailableError):
        push(client)
    assert keeper.push_ended.wait(30)
    assert keeper.buffers_in_use == 0
    link.mend()
    push(client)
    assert keeper.pushes[-1][1] == PAYLOAD


@pytest.mark.parametrize("incarnation", [1, 2])
def test_a_pull_that_failed_goes_on_in_the_next_one(
    server: RunningServer, link: Link, client: SyncClient, incarnation: int
) -> None:
    link.cut_after_bytes(len(PAYLOAD) * 7 // 8)
    with pytest.raises(UnavailableError):
        pull(client)
    held = client._earlier.pulled[REQUEST.fragment].receiver.held
    left = held.left
    assert 0 < left < PARTS
    (before,) = server.traffic.read()
    link.mend()
    # The learner may have lost its session meanwhile, and have a new one.
    assert pull(client, dataclasses.replace(REQUEST, incarnation=incarnation)) == PAYLOAD
    assert held.whole
    (after,) = server.traffic.read()
    assert after.down.total - before.down.total <= (left + CONNECTIONS) * LONGEST_PART_BYTES


def test_a_pull_begins_anew_if_there_is_a_newer_version(keeper: Keeper, link: Link, client: SyncClient) -> None:
    link.cut_after_bytes(len(PAYLOAD) // 2)
    with pytest.raises(UnavailableError):
        pull(client)
    link.mend()
    keeper.fragments[7] = newer = os.urandom(len(PAYLOAD))
    assert pull(client, dataclasses.replace(REQUEST, minimum_version=4)) == newer
    assert pull(client, dataclasses.replace(REQUEST, minimum_version=4)) == newer


def test_a_pull_of_another_epoch_begins_anew(keeper: Keeper, link: Link, client: SyncClient) -> None:
    link.cut_after_bytes(len(PAYLOAD) // 2)
    with pytest.raises(UnavailableError):
        pull(client)
    link.mend()
    keeper.fragments[7] = other = os.urandom(len(PAYLOAD))
    assert pull(client, dataclasses.replace(REQUEST, epoch="2")) == other


def test_what_an_allocation_refuses_ends_the_pull_that_goes_on(link: Link, client: SyncClient) -> None:
    link.cut_after_bytes(len(PAYLOAD) // 2)
    with pytest.raises(UnavailableError):
        pull(client)
    link.mend()

    def refuse(_: PullHeader) -> memoryview:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        client.pull(REQUEST, refuse, deadline_seconds=30)
    assert pull(client) == PAYLOAD
