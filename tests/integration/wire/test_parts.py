"""Transfers over several connections: whole, cut in the middle, stalled, refused, withdrawn."""

import asyncio
import dataclasses
import os
import threading
import time
from typing import Any

import pytest

from diloco.wire.client.client import ClientOptions
from diloco.wire.client.lanes import Lanes
from diloco.wire.convert import pack
from diloco.wire.errors import UnavailableError
from diloco.wire.messages import Alive, Progress, PullHeader, PushHeader, Welcome
from diloco.wire.part_messages import HEADER_BYTES, PartsReceiver, part_checksum, part_message, payload_digest
from diloco.wire.parts import LARGEST_PART_BYTES, Grid
from diloco.wire.server.pushes import PushParts
from testbed.blocking_client import BlockingClient
from tests.integration.wire.calls import (
    CONNECTIONS,
    JOIN,
    PAYLOAD,
    PAYLOAD_IN_PARTS,
    PAYLOAD_PART,
    REQUEST,
    pull,
    push,
)
from tests.support.raw_wire import RawClient, ending, push_header
from tests.support.tcp_proxy import TcpProxy
from tests.support.wire_syncer import Keeper, RunningServer


@pytest.mark.parametrize("size", [1, 64 << 10, (64 << 10) + 1, 20 << 20])
def test_payloads_of_any_size_arrive(keeper: Keeper, joined: BlockingClient, size: int) -> None:
    payload = os.urandom(size)
    keeper.fragments[7] = payload
    push(joined, payload)
    buffer = bytearray(size)
    header = joined.pull(REQUEST, lambda _: memoryview(buffer), deadline_seconds=30)
    ((pushed, received),) = keeper.pushes
    assert received == payload == buffer
    assert header == PullHeader(7, 3, size, payload_digest(memoryview(payload)), part_bytes=header.part_bytes)
    assert pushed.payload_digest == header.payload_digest


def test_learners_that_pull_one_version_get_it_from_one_hash(
    keeper: Keeper, joined: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[int] = []

    def counted(payload: memoryview, grid: Grid, part: int) -> int:
        hashed.append(part)
        return part_checksum(payload, grid, part)

    monkeypatch.setattr("diloco.wire.server.pulls.part_checksum", counted)
    keeper.says_digests = True
    assert pull(joined) == pull(joined, learner="a/b/1") == PAYLOAD
    assert sorted(hashed) == list(range(len(PAYLOAD) // PAYLOAD_PART))


def test_a_pull_over_a_short_link_takes_one_connection_and_few_parts(
    client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diloco.wire.parts._ROUND_TRIP_SECONDS", 30.0)
    came: list[tuple[int, int]] = []
    taken = PartsReceiver.add

    def take(receiver: PartsReceiver, connection: int, message: bytes) -> int:
        came.append((connection, len(message) - HEADER_BYTES))
        return taken(receiver, connection, message)

    monkeypatch.setattr(PartsReceiver, "add", take)
    assert pull(client) == PAYLOAD
    assert len(came) == len(PAYLOAD) // PAYLOAD_PART, "it is not known yet how short the link is"
    came.clear()
    assert pull(client) == PAYLOAD
    assert came == [(0, LARGEST_PART_BYTES)] * (len(PAYLOAD) // LARGEST_PART_BYTES)


def test_the_first_answer_to_a_push_is_not_behind_its_parts(
    joined: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diloco.wire.client.pushes._ROUND_TRIP_SECONDS", 30.0)
    events: list[str] = []
    monkeypatch.setattr(Lanes, "answered", lambda *_: events.append("answer"))

    def sent(payload: memoryview, grid: Grid, part: int, checksum: int) -> bytes:
        events.append("part")
        return part_message(payload, grid, part, checksum)

    monkeypatch.setattr("diloco.wire.client.pushes.part_message", sent)
    push(joined)
    assert events[0] == "answer", "it says how long the link is"
    assert events.count("part") == len(PAYLOAD) // PAYLOAD_PART


def test_the_parts_of_a_push_do_not_wait_long_for_the_first_answer(
    joined: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, say = threading.Event(), PushParts._say

    async def say_later(pushes: PushParts, context: Any, learner: str, message: bytes) -> None:
        await asyncio.to_thread(sent.wait, 30)
        await say(pushes, context, learner, message)

    monkeypatch.setattr(PushParts, "_say", say_later)
    taken = PartsReceiver.add

    def take(receiver: PartsReceiver, connection: int, message: bytes) -> int:
        sent.set()
        return taken(receiver, connection, message)

    monkeypatch.setattr(PartsReceiver, "add", take)
    push(joined)
    assert sent.is_set()


def test_a_push_that_is_cut_goes_on_where_it_was(
    keeper: Keeper, server: RunningServer, proxy: TcpProxy, joined: BlockingClient, client: BlockingClient
) -> None:
    with client.open_session(JOIN) as session:
        said = iter(session)
        next(said)
        proxy.cut_after_bytes(len(PAYLOAD) // 2, not_before=keeper.accepted)
        push(joined)
        assert proxy.was_cut.is_set()
        # A session on another connection notices nothing.
        session.send(Alive(1))
        assert next(said) is not None
    assert keeper.failed == []
    ((_, received),) = keeper.pushes
    assert received == PAYLOAD
    # What was read of a part that was cut is no message yet: so it is at most one part for each connection.
    (region,) = server.traffic.read()
    assert region.up.bulk == PAYLOAD_IN_PARTS
    assert region.up.bulk + region.up.again <= len(PAYLOAD) + CONNECTIONS * (PAYLOAD_PART + 64)


def test_a_pull_that_is_cut_goes_on_where_it_was(
    server: RunningServer, proxy: TcpProxy, joined: BlockingClient
) -> None:
    proxy.cut_after_bytes(len(PAYLOAD) // 2)
    assert pull(joined) == PAYLOAD, "its buffer is allocated once"
    assert proxy.was_cut.is_set()
    (region,) = server.traffic.read()
    assert region.down.bulk == PAYLOAD_IN_PARTS
    assert region.down.again > 0, "what was under way when the connections broke"


@pytest.mark.parametrize("what", ["push", "pull"])
def test_one_stalled_connection_of_eight_holds_nothing_up(
    keeper: Keeper, proxy: TcpProxy, joined: BlockingClient, what: str
) -> None:
    push(joined, attempt=9)  # opens every connection
    proxy.stall_one_after_bytes(2 * PAYLOAD_PART)
    if what == "push":
        push(joined)
        assert keeper.pushes[-1][1] == PAYLOAD
    else:
        assert pull(joined) == PAYLOAD
    assert proxy.stalled.is_set()


def test_a_receipt_that_was_lost_is_given_again(keeper: Keeper, joined: BlockingClient) -> None:
    push(joined)
    push(joined)
    assert len(keeper.pushes) == 1


def test_every_connection_of_a_push_is_told_why_it_is_refused(keeper: Keeper, server: RunningServer) -> None:
    # The learner reports the answer that arrives first, and a refusal for a false claim ends the session.
    header = push_header(len(PAYLOAD), part_bytes=PAYLOAD_PART)
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
    header = push_header(len(PAYLOAD), part_bytes=PAYLOAD_PART)
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


def test_no_syncer_is_told_after_a_while() -> None:
    with BlockingClient(ClientOptions("127.0.0.1:1")) as client:
        client.client.note_terms(Welcome(1, "epoch", (), (), 0, 0, Progress(0, 1, 0), connections=CONNECTIONS))
        with pytest.raises(UnavailableError):
            push(client)
