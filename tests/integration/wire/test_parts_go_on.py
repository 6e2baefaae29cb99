"""A transfer that failed goes on in the next one, and what had arrived is not sent again. The link is cut for real."""

import itertools
import os
import threading
from typing import Any

import pytest

from diloco.wire.errors import InvalidMessageError, UnavailableError
from diloco.wire.messages import PullHeader, PushHeader
from testbed.blocking_client import BlockingClient
from tests.integration.wire.calls import CONNECTIONS, PAYLOAD, PAYLOAD_PART, REQUEST, pull, push
from tests.support.tcp_proxy import TcpProxy
from tests.support.wire_syncer import Keeper, RunningServer


@pytest.fixture
def link(proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch) -> "Link":
    return Link(proxy, monkeypatch)


class Link:
    """A link that is cut and mended. While it is cut a transfer fails soon, afterwards it has time to go on."""

    def __init__(self, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        self._proxy = proxy
        self._monkeypatch = monkeypatch

    def cut_after_bytes(self, count: int, not_before: threading.Event | None = None) -> None:
        self._monkeypatch.setattr("diloco.wire.client.calls._BROKEN_SECONDS", 0.2)
        self._proxy.for_good = True
        self._proxy.cut_after_bytes(count, not_before=not_before)

    def mend(self) -> None:
        assert self._proxy.was_cut.is_set()
        self._monkeypatch.setattr("diloco.wire.client.calls._BROKEN_SECONDS", 30.0)
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
    keeper: Keeper, server: RunningServer, link: Link, joined: BlockingClient
) -> None:
    arrived = count_parts(keeper, 3 * CONNECTIONS)
    link.cut_after_bytes(len(PAYLOAD) * 7 // 8, not_before=arrived)
    with pytest.raises(UnavailableError):
        push(joined)
    assert arrived.is_set()
    link.mend()
    push(joined)
    assert keeper.failed == []
    ((_, received),) = keeper.pushes
    assert received == PAYLOAD
    (region,) = server.traffic.read()
    assert region.up.bulk + region.up.again <= len(PAYLOAD) + CONNECTIONS * (PAYLOAD_PART + 16)


def test_a_push_of_another_version_starts_over(
    keeper: Keeper, server: RunningServer, link: Link, joined: BlockingClient
) -> None:
    link.cut_after_bytes(len(PAYLOAD) // 2)
    with pytest.raises(UnavailableError):
        push(joined)
    server.call_soon(keeper.abandon)  # as a request for another version does
    assert keeper.push_ended.wait(30)
    link.mend()
    other = PAYLOAD[::-1]
    push(joined, other, version=2)
    ((_, received),) = keeper.pushes
    assert received == other


def test_a_push_goes_on_from_nothing_if_the_syncer_gave_it_up(
    keeper: Keeper, link: Link, joined: BlockingClient
) -> None:
    link.cut_after_bytes(len(PAYLOAD) // 2)
    with pytest.raises(UnavailableError):
        push(joined)
    assert keeper.push_ended.wait(30)
    assert keeper.buffers_in_use == 0
    link.mend()
    push(joined)
    assert keeper.pushes[-1][1] == PAYLOAD


@pytest.mark.parametrize("incarnation", [1, 2])
def test_a_pull_that_failed_goes_on_in_the_next_one(
    server: RunningServer, link: Link, joined: BlockingClient, incarnation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.cut_after_bytes(len(PAYLOAD) * 7 // 8)
    with pytest.raises(UnavailableError):
        pull(joined)
    held = joined.client._earlier.pulled[REQUEST.fragment].receiver.held
    left = held.left
    assert 0 < left < len(PAYLOAD) // PAYLOAD_PART
    (before,) = server.traffic.read()
    link.mend()
    monkeypatch.setattr("diloco.wire.parts._ROUND_TRIP_SECONDS", 30.0)  # one connection would do now
    # The learner may have lost its session meanwhile, and have a new one.
    assert pull(joined, incarnation=incarnation) == PAYLOAD
    assert held.whole
    (after,) = server.traffic.read()
    assert after.down.total - before.down.total <= (left + CONNECTIONS) * (PAYLOAD_PART + 16)


@pytest.mark.parametrize("changes", [{"minimum_version": 4}, {"epoch": "2"}], ids=["newer version", "another epoch"])
def test_a_pull_begins_anew_for_another_version(
    keeper: Keeper, link: Link, joined: BlockingClient, changes: dict[str, Any]
) -> None:
    link.cut_after_bytes(len(PAYLOAD) // 2)
    with pytest.raises(UnavailableError):
        pull(joined)
    link.mend()
    keeper.fragments[7] = newer = os.urandom(len(PAYLOAD))
    for _ in range(2):
        assert pull(joined, **changes) == newer


def test_a_pull_begins_anew_for_what_has_fewer_parts(keeper: Keeper, link: Link, joined: BlockingClient) -> None:
    link.cut_after_bytes(len(PAYLOAD) * 7 // 8)
    with pytest.raises(UnavailableError):
        pull(joined)
    link.mend()
    keeper.fragments[7] = update = b"from the version that the learner holds"
    with pytest.raises(InvalidMessageError, match="of 1 were acknowledged"):
        pull(joined, minimum_version=4)
    assert pull(joined, minimum_version=4) == update


def test_what_an_allocation_refuses_ends_the_pull_that_goes_on(link: Link, joined: BlockingClient) -> None:
    link.cut_after_bytes(len(PAYLOAD) // 2)
    with pytest.raises(UnavailableError):
        pull(joined)
    link.mend()

    def refuse(_: PullHeader) -> memoryview:
        raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        joined.pull(REQUEST, refuse, deadline_seconds=30)
    assert pull(joined) == PAYLOAD
