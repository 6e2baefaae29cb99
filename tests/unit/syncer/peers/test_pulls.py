"""What a pull is answered with: the whole fragment or the update that a learner can use, now or once it is made."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import torch

from diloco.core.engine.actions import Fence, Refusal
from diloco.core.fragments import TensorSpec, partition
from diloco.core.merge.codecs import codec_named
from diloco.core.merge.downlink import Update, encode_update
from diloco.syncer.peers.load_places import MOST_PLACES
from diloco.syncer.store import EncodedUpdate, digest_of
from diloco.wire.errors import RefusedError
from diloco.wire.messages import PullHeader, PullRequest
from tests.support.syncer_peers import ANYBODY, BESIDE, EPOCH, INCARNATION, WHO, SyncerPeers

LAYOUT = partition([TensorSpec("a", (10,), embedding=False)], 1)
CODEC = codec_named("Int8")
REQUEST = PullRequest(WHO, INCARNATION, 0, 4, EPOCH)


class Bench(SyncerPeers):
    """A syncer whose only fragment is at version 4, and a learner with a session."""

    def __init__(self) -> None:
        super().__init__(layout=LAYOUT, residuals=True)

    def make(self, *, whole: bool = False) -> torch.Tensor:
        """The next version, and its update unless it is ``whole``; returns its parameters."""
        current, made, residual = self.store.current(0), self.store.target(0), self.store.residual(0)
        assert residual is not None
        new = torch.add(current.parameters, 0.3, out=made.merge.parameters)
        update = None
        if not whole:
            payload, _ = encode_update(CODEC, Update(current.parameters, new, residual, residual))
            assert payload is not None
            update = EncodedUpdate(current.version, CODEC.name, payload, digest_of(payload))
        self.store.commit(0, current.version + 1, made, digest_of(new), update)
        self.posted.made(0)
        return new

    async def pull(self, minimum: int, held: int | None = None, *, posted: bool = False) -> tuple[PullHeader, bytes]:
        request = replace(REQUEST, minimum_version=minimum, held_version=held, posted=posted)
        header, view = await self.service.open_pull(request, ANYBODY)
        return header, bytes(view)

    async def waiting(self, minimum: int, held: int | None = None) -> "asyncio.Task[tuple[PullHeader, bytes]]":
        """A posted pull of a version that is not made yet."""
        pull = asyncio.create_task(self.pull(minimum, held, posted=True))
        await asyncio.sleep(0)
        assert self.posted.waiting == 1
        return pull

    def end_session(self) -> None:
        self.sessions.fence(Fence(WHO, INCARNATION, Refusal.LEASE_EXPIRED, "it was silent"))


@pytest.fixture
def bench(runner: asyncio.Runner) -> Bench:
    async def made() -> Bench:
        bench = Bench()
        await bench.admitted()
        return bench

    return runner.run(made())


async def test_whoever_holds_the_version_before_is_sent_the_update(bench: Bench) -> None:
    new = bench.make()
    header, payload = await bench.pull(5, held=4)
    assert (header.codec, header.base_version, header.version) == ("Int8", 4, 5)
    assert header.payload_bytes == len(payload) == CODEC.payload_bytes(10)
    assert header.result_digest == digest_of(new)
    assert bench.count("diloco_pulls_total", payload="update") == 1


@pytest.mark.parametrize("held", [None, 0, 3, 5, 2**62])
async def test_a_learner_without_the_base_version_is_sent_the_fragment_whole(bench: Bench, held: int | None) -> None:
    new = bench.make()
    header, payload = await bench.pull(5, held=held)
    assert header == PullHeader(0, 5, 40, digest_of(new))
    assert payload == new.numpy().tobytes()
    assert bench.count("diloco_pulls_total", payload="whole") == 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"epoch": "2"}, "syncer epoch is 3, not '2': the syncer has restarted"),
        ({"incarnation": 2}, "incarnation 2 of r/p/0 has no session here"),
        ({"learner": BESIDE}, "incarnation 7 of r/p/1 has no session here"),
        ({"fragment": 1}, "fragment 1 of 1: they count from 0"),
        ({"minimum_version": 5}, "is at version 4, not yet at 5"),
        ({"minimum_version": 6, "posted": True}, "is at version 4, not yet at 6"),
    ],
)
async def test_only_a_learner_with_a_session_is_sent_a_fragment(
    bench: Bench, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(RefusedError, match=text):
        await bench.service.open_pull(replace(REQUEST, **changes), ANYBODY)


async def test_a_version_without_an_update_is_sent_whole_also_after_a_start(bench: Bench) -> None:
    assert (await bench.pull(4, held=3))[0].codec == ""
    bench.make(whole=True)
    assert (await bench.pull(5, held=4))[0].codec == ""


async def test_a_posted_pull_is_answered_once_the_version_is_made(bench: Bench) -> None:
    pull = await bench.waiting(5, held=4)
    bench.make()
    header, _ = await pull
    assert (header.version, header.codec) == (5, "Int8")


async def test_a_posted_pull_overtaken_by_a_merge_is_sent_the_newest_version(bench: Bench) -> None:
    pull = await bench.waiting(5, held=4)
    bench.make()
    bench.make()
    header, _ = await pull
    assert (header.version, header.codec) == (6, "")


async def test_a_posted_pull_for_what_is_there_is_answered_at_once(bench: Bench) -> None:
    assert (await bench.pull(3, posted=True))[0].version == 4


async def test_a_learner_whose_session_ended_meanwhile_is_told_so(bench: Bench) -> None:
    pull = await bench.waiting(5)
    bench.end_session()
    bench.make()
    with pytest.raises(RefusedError, match="has no session here"):
        await pull


async def waits_for_a_turn(bench: Bench) -> "asyncio.Task[tuple[PullHeader, bytes]]":
    """A learner's pull that waits because others load."""
    for index in range(MOST_PLACES):
        bench.loads.begins(f"r/q/{index}")
        await bench.loads.turn(f"r/q/{index}")
    bench.loads.begins(WHO)
    pull = asyncio.create_task(bench.pull(4))
    await asyncio.sleep(0.01)
    assert not pull.done()
    return pull


async def test_a_learner_that_loads_waits_and_gets_the_newest_version(bench: Bench) -> None:
    pull = await waits_for_a_turn(bench)
    bench.make()
    bench.loads.ends("r/q/0")
    assert (await pull)[0].version == 5


async def test_a_session_that_ends_while_its_pull_waits_for_a_turn_gets_nothing(bench: Bench) -> None:
    pull = await waits_for_a_turn(bench)
    bench.end_session()
    with pytest.raises(RefusedError, match="incarnation 7 of r/p/0 has no session here"):
        await pull
