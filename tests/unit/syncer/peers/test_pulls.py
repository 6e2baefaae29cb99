"""What a pull is answered with: the whole fragment or the update that a learner can use, now or once it is made."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from prometheus_client import generate_latest

from diloco.core.codec import codec_named
from diloco.core.downlink import Update, encode_update
from diloco.core.fragments import TensorSpec, partition
from diloco.syncer.peers.claims import ClaimLimits, Claims
from diloco.syncer.peers.inbox import Inbox
from diloco.syncer.peers.link_meter import LinkMeter
from diloco.syncer.peers.load_places import LoadPlaces
from diloco.syncer.peers.loads import Loads
from diloco.syncer.peers.posted_pulls import PostedPulls
from diloco.syncer.peers.service import SyncService
from diloco.syncer.reporting.metrics import SyncerMetrics
from diloco.syncer.store import EncodedUpdate, FragmentStore, digest_of
from diloco.wire.errors import IdentityError, RefusedError
from diloco.wire.messages import PullHeader, PullRequest
from diloco.wire.tls import Peer

LAYOUT = partition([TensorSpec("a", (10,), embedding=False)], 1)
CODEC = codec_named("Int8")
PEER = Peer("test")


class Sessions:
    """Those who have a session."""

    def __init__(self) -> None:
        self.incarnations = {"r/p/0": 1}

    def current(self, learner: str, incarnation: int) -> bool:
        return self.incarnations.get(learner) == incarnation


class Bench:
    """A syncer's service on a store of one fragment at version 4."""

    def __init__(self) -> None:
        self.store = FragmentStore(LAYOUT, residuals=True)
        self.store.put(0, 4, torch.arange(10.0))
        self.sessions = Sessions()
        self.posted = PostedPulls(3600.0)
        self.loads = Loads(time.monotonic, LoadPlaces(most=1))
        self.metrics = SyncerMetrics()
        self.service = SyncService(
            job="job",
            epoch="1",
            layout=LAYOUT,
            codec=codec_named("None"),
            sessions=cast("Any", self.sessions),
            inbox=Inbox(LAYOUT, codec_named("None")),
            store=self.store,
            posted=self.posted,
            loads=self.loads,
            claims=Claims(ClaimLimits(lambda _: 1, frozenset({"here/cpu"}), 1, 100, 1), lambda: None, time.monotonic),
            patience_seconds=1.0,
            meter=LinkMeter(time.monotonic),
            metrics=self.metrics,
            checks=ThreadPoolExecutor(1),
            post=lambda _: None,
        )

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
        return new

    async def pull(self, minimum: int, held: int | None = None, *, posted: bool = False) -> tuple[PullHeader, bytes]:
        request = PullRequest("r/p/0", 1, 0, minimum, "1", held, posted)
        header, view = await self.service.open_pull(request, PEER)
        return header, bytes(view)


def test_whoever_holds_the_version_before_is_sent_the_update() -> None:
    bench = Bench()
    new = bench.make()
    header, payload = asyncio.run(bench.pull(5, held=4))
    assert (header.codec, header.base_version, header.version) == ("Int8", 4, 5)
    assert header.payload_bytes == len(payload) == CODEC.payload_bytes(10)
    assert header.result_digest == digest_of(new)
    assert b'diloco_pulls_total{payload="update"} 1.0' in page(bench)


def page(bench: Bench) -> bytes:
    return generate_latest(bench.metrics.registry)


@pytest.mark.parametrize("held", [None, 0, 3, 5, 2**62])
def test_a_learner_without_the_base_version_is_sent_the_fragment_whole(held: int | None) -> None:
    bench = Bench()
    new = bench.make()
    header, payload = asyncio.run(bench.pull(5, held=held))
    assert header == PullHeader(0, 5, 40, digest_of(new))
    assert payload == new.numpy().tobytes()
    assert b'diloco_pulls_total{payload="whole"} 1.0' in page(bench)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"epoch": "2"}, "syncer epoch is 1, not '2': the syncer has restarted"),
        ({"incarnation": 2}, "incarnation 2 of r/p/0 has no session here"),
        ({"learner": "r/p/1"}, "incarnation 1 of r/p/1 has no session here"),
        ({"fragment": 1}, "fragment 1 of 1: they count from 0"),
    ],
)
def test_only_a_learner_with_a_session_is_sent_a_fragment(changes: dict[str, Any], text: str) -> None:
    request = replace(PullRequest("r/p/0", 1, 0, 4, "1"), **changes)
    with pytest.raises(RefusedError, match=text):
        asyncio.run(Bench().service.open_pull(request, PEER))


def test_a_certificate_pulls_only_for_its_own_learner() -> None:
    for peer in (Peer("test", "r/p/1", "job"), Peer("test", "r/p/0", "other")):
        with pytest.raises(IdentityError):
            asyncio.run(Bench().service.open_pull(PullRequest("r/p/0", 1, 0, 4, "1"), peer))


def test_a_version_without_an_update_is_sent_whole_also_after_a_start() -> None:
    bench = Bench()
    assert asyncio.run(bench.pull(4, held=3))[0].codec == ""
    bench.make(whole=True)
    assert asyncio.run(bench.pull(5, held=4))[0].codec == ""


def test_a_posted_pull_is_answered_once_the_version_is_made() -> None:
    async def posted() -> PullHeader:
        bench = Bench()
        pull = asyncio.ensure_future(bench.pull(5, held=4, posted=True))
        await asyncio.sleep(0)
        assert bench.posted.waiting == 1
        bench.make()
        bench.posted.made(0)
        return (await pull)[0]

    header = asyncio.run(posted())
    assert (header.version, header.codec) == (5, "Int8")


def test_a_posted_pull_overtaken_by_a_merge_is_sent_the_newest_version() -> None:
    async def posted() -> PullHeader:
        bench = Bench()
        pull = asyncio.ensure_future(bench.pull(5, held=4, posted=True))
        await asyncio.sleep(0)
        bench.make()
        bench.posted.made(0)
        bench.make()
        bench.posted.made(0)
        return (await pull)[0]

    header = asyncio.run(posted())
    assert (header.version, header.codec) == (6, "")


def test_a_posted_pull_for_what_is_there_is_answered_at_once() -> None:
    bench = Bench()
    assert asyncio.run(bench.pull(3, posted=True))[0].version == 4


@pytest.mark.parametrize(("minimum", "posted"), [(5, False), (6, True), (2**62, True)])
def test_nobody_waits_for_a_version_that_is_not_the_next(minimum: int, *, posted: bool) -> None:
    with pytest.raises(RefusedError, match="is at version 4, not yet at"):
        asyncio.run(Bench().pull(minimum, posted=posted))


def test_a_learner_whose_session_ended_meanwhile_is_told_so() -> None:
    async def posted() -> None:
        bench = Bench()
        pull = asyncio.ensure_future(bench.pull(5, posted=True))
        await asyncio.sleep(0)
        bench.sessions.incarnations.clear()
        bench.make()
        bench.posted.made(0)
        await pull

    with pytest.raises(RefusedError, match="has no session here"):
        asyncio.run(posted())


async def waiting_for_a_turn() -> tuple[Bench, "asyncio.Future[Any]"]:
    """A learner's pull that waits because another learner loads."""
    bench = Bench()
    for learner in ("r/p/1", "r/p/0"):
        bench.loads.begins(learner)
    await bench.loads.turn("r/p/1")
    pull = asyncio.ensure_future(bench.pull(4))
    await asyncio.sleep(0.01)
    return bench, pull


def test_a_learner_that_loads_waits_and_gets_the_newest_version() -> None:
    async def scene() -> None:
        bench, pull = await waiting_for_a_turn()
        assert not pull.done()
        bench.make()
        bench.loads.ends("r/p/1")
        assert (await pull)[0].version == 5

    asyncio.run(scene())


def test_a_session_that_ends_while_its_pull_waits_for_a_turn_gets_nothing() -> None:
    async def scene() -> None:
        bench, pull = await waiting_for_a_turn()
        bench.sessions.incarnations.clear()
        bench.loads.ends("r/p/0")
        with pytest.raises(RefusedError, match="incarnation 1 of r/p/0 has no session here"):
            await pull

    asyncio.run(scene())
