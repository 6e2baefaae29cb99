"""A region's limit is asked for every byte of a fragment, both ways."""

import asyncio
from collections.abc import Iterator

import pytest

from diloco.wire.client.client import ClientOptions
from diloco.wire.convert import pack
from diloco.wire.messages import Progress, Welcome
from diloco.wire.part_messages import Holds, unpack_from_receiver
from diloco.wire.server.bandwidth import Limit
from diloco.wire.server.server import ServerOptions
from testbed.blocking_client import BlockingClient
from tests.integration.wire.calls import PAYLOAD, pull, push
from tests.support.raw_wire import RawClient, ending, part_at, push_header
from tests.support.wire_syncer import Keeper, RunningServer

WELCOME = Welcome(1, "epoch", (), (), 0, 0, Progress(0, 1, 0), connections=8, bytes_per_second=1 << 40)
PART = 64 << 10


class CountingLimit(Limit):
    """Counts what it is asked for; what exceeds ``granted_at_most`` waits until ``open``."""

    def __init__(self) -> None:
        super().__init__(float(1 << 40))
        self.came = 0
        self.went = 0
        self.granted_at_most: int | None = None
        self._opened = asyncio.Event()

    async def up(self, size: int) -> None:
        if self.granted_at_most is not None and self.came + size > self.granted_at_most:
            await self._opened.wait()
        self.came += size

    def open(self) -> None:
        """Let everything pass. Called on the server's event loop."""
        self._opened.set()

    async def down(self, size: int) -> None:
        self.went += size


@pytest.fixture
def limit() -> CountingLimit:
    return CountingLimit()


@pytest.fixture
def limited(keeper: Keeper, limit: CountingLimit) -> Iterator[RunningServer]:
    with RunningServer(keeper, ServerOptions("127.0.0.1:0", limit_of=lambda _: limit)) as running:
        yield running
    assert running.loop_complaints == []
    assert keeper.buffers_in_use == 0


def test_every_byte_is_asked_for_in_both_directions(
    keeper: Keeper, limited: RunningServer, limit: CountingLimit
) -> None:
    with BlockingClient(ClientOptions(limited.address)) as client:
        client.client.note_terms(WELCOME)
        push(client)
        assert pull(client) == PAYLOAD
    ((_, received),) = keeper.pushes
    assert received == PAYLOAD
    for asked in (limit.came, limit.went):
        assert len(PAYLOAD) <= asked <= len(PAYLOAD) * 1.01


def test_what_is_one_part_is_asked_for_although_the_learner_does_not_wait(
    limited: RunningServer, keeper: Keeper, limit: CountingLimit
) -> None:
    keeper.fragments[7] = bytes(PART)
    with BlockingClient(ClientOptions(limited.address)) as client:  # has not been told that there is a limit
        client.client._earlier.pulled_bytes[7] = PART
        push(client, bytes(PART))
        assert pull(client) == bytes(PART)
    assert limit.came >= PART
    assert limit.went >= PART


def test_a_learner_that_waits_sends_no_more_than_is_granted(
    keeper: Keeper, limited: RunningServer, limit: CountingLimit
) -> None:
    limit.granted_at_most = 3 * PART
    header = push_header(8 * PART, part_bytes=PART)
    with RawClient(limited.address) as raw:
        call = raw.parts([pack(header)])
        said = [Holds([], 0)]
        while (last := said[-1]).granted < 3:
            found = unpack_from_receiver(next(call))
            assert isinstance(found, Holds)
            said.append(found)
        assert last.granted == 3
        limited.call_soon(keeper.abandon)
        assert keeper.push_ended.wait(30)


def test_a_learner_that_does_not_wait_is_read_no_faster(
    keeper: Keeper, limited: RunningServer, limit: CountingLimit
) -> None:
    limit.granted_at_most = 2 * PART
    header = push_header(8 * PART, part_bytes=PART)
    parts = [part_at(number * PART, bytes(PART)) for number in range(8)]
    with RawClient(limited.address) as raw:
        call = raw.parts([pack(header), *parts])
        granted, held = 0, 0
        while granted < 2 or held < 3:
            said = unpack_from_receiver(next(call))
            assert isinstance(said, Holds)
            granted, held = max(granted, said.granted), held + sum(end - first for first, end in said.ranges)
        assert held <= 3  # the third one was read before it was held back
        limited.call_soon(limit.open)
        ending(call)
    ((_, received),) = keeper.pushes
    assert received == bytes(8 * PART)
