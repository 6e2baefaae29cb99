"""The collector against single learners: what is asked, taken and refused, and when it stops."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from diloco.core.buffers import bytes_of
from diloco.core.proof import proof_of
from diloco.syncer.recovery.collector import Collector
from diloco.syncer.recovery.tail import MadeVersion
from diloco.syncer.store import digest_of
from diloco.wire.errors import InvalidMessageError, RefusedError, UnavailableError, WireError
from diloco.wire.messages import (
    Declined,
    HeldWanted,
    Join,
    LearnerMessage,
    PullRequest,
    PushHeader,
    PushReceipt,
    Ready,
    SyncerMessage,
)
from tests.support.holding_learner import held_header
from tests.support.syncer_peers import ANYBODY, JOB, LAYOUT

WHO, OTHER = "r/p/0", "r/p/1"
EPOCH = "3.ab"
NEWEST = 5


def values_of(fragment: int, version: int) -> torch.Tensor:
    return torch.arange(LAYOUT.fragments[fragment].numel, dtype=torch.float32) + version


def made(fragment: int, version: int) -> MadeVersion:
    values = values_of(fragment, version)
    return MadeVersion(version, digest_of(values).hex(), version - 3, 100, proof_of(bytes_of(values)))


class Scene:
    """A collector that lacks versions 4 and 5 of both fragments, and sessions with it."""

    def __init__(self, *awaited: str, patience_seconds: float = 30.0, most_seconds: float = 60.0) -> None:
        self.taken: dict[int, tuple[int, torch.Tensor]] = {}
        self.said: dict[str, asyncio.Queue[SyncerMessage]] = {}
        self.stop = asyncio.Event()
        self._checks = ThreadPoolExecutor(1)
        self.collector = Collector(
            job=JOB,
            epoch=3,
            layout=LAYOUT,
            provable={p: {version: made(p, version) for version in (4, NEWEST)} for p in range(2)},
            known=frozenset({WHO, OTHER}),
            awaited=frozenset(awaited or (WHO,)),
            take=self._take,
            checks=self._checks,
        )
        self.collecting = asyncio.create_task(
            self.collector.collect(patience_seconds=patience_seconds, most_seconds=most_seconds, stop=self.stop)
        )

    async def _take(self, fragment: int, one: MadeVersion, values: torch.Tensor) -> None:
        self.taken[fragment] = one.version, values.clone()

    def joins(
        self, learner: str = WHO, held: tuple[int, ...] = (6, 6), inbound: Callable[[], Any] | None = None, **more: Any
    ) -> "asyncio.Task[None]":
        """A session; it lasts until the collector ends it, unless ``inbound`` ends before."""
        join = Join(JOB, learner, "one", LAYOUT.digest, held_epoch=EPOCH, held=held)
        queue = self.said[learner] = asyncio.Queue[SyncerMessage]()
        messages = (inbound or silence)()
        session = self.collector.session(replace(join, **more), ANYBODY, messages, queue.put_nowait)
        return asyncio.create_task(session)

    async def wanted(self, learner: str = WHO) -> HeldWanted:
        async with asyncio.timeout(60):
            message = await self.said[learner].get()
        assert isinstance(message, HeldWanted)
        return message

    async def sends(self, wanted: HeldWanted, learner: str = WHO, change: float = 0.0) -> PushReceipt:
        """Push what is wanted, each value changed by as much."""
        header = header_of(wanted, learner)
        buffer = self.collector.accept_push(header, ANYBODY, lambda: None)
        values = values_of(wanted.fragment, wanted.version) + change
        assert self.collector.push_unwanted(header) is None
        buffer[:] = bytes_of(values)
        return await self.collector.pushed(header)

    async def stopped(self, *sessions: "asyncio.Task[None]") -> None:
        """The syncer stops; these sessions end."""
        self.stop.set()
        await self.over()
        await asyncio.gather(*sessions)

    async def over(self) -> None:
        async with asyncio.timeout(60):
            await self.collecting
        self._checks.shutdown()


async def silence() -> AsyncIterator[LearnerMessage]:
    await asyncio.Event().wait()
    yield Ready(0)


def header_of(wanted: HeldWanted, learner: str = WHO, **changes: Any) -> PushHeader:
    numel = LAYOUT.fragments[wanted.fragment].numel
    return replace(held_header(wanted, learner, EPOCH, 4 * numel), **changes)


async def test_everything_is_taken_and_the_session_ends() -> None:
    scene = Scene()
    session = scene.joins()
    for _ in range(2):
        receipt = await scene.sends(await scene.wanted())
        assert receipt.accepted
    await scene.over()
    await session
    assert {p: version for p, (version, _) in scene.taken.items()} == {0: NEWEST, 1: NEWEST}
    assert all(torch.equal(values, values_of(p, NEWEST)) for p, (_, values) in scene.taken.items())
    assert scene.collector.senders == {WHO}


async def test_other_bytes_are_refused_and_asked_of_somebody_else() -> None:
    scene = Scene(WHO, OTHER)
    lying = scene.joins(WHO)
    wanted = [await scene.wanted(), await scene.wanted()]
    honest = scene.joins(OTHER)
    receipt = await scene.sends(wanted[0], change=1.0)
    assert receipt == PushReceipt(accepted=False, reason="these are not the bytes that the syncer had merged")
    with pytest.raises(RefusedError, match="not asked of you"):
        await scene.sends(wanted[1])
    for _ in range(2):
        assert (await scene.sends(await scene.wanted(OTHER), OTHER)).accepted
    await scene.over()
    await asyncio.gather(lying, honest)
    assert scene.collector.senders == {OTHER}


@pytest.mark.parametrize(
    "changes",
    [{"payload_bytes": 4 << 40}, {"codec": "Int8"}, {"attempt": 99}, {"fragment": 77}],
    ids=str,
)
async def test_a_push_that_was_not_asked_for_takes_no_memory(changes: dict[str, Any]) -> None:
    scene = Scene()
    session = scene.joins()
    wanted = await scene.wanted()
    with pytest.raises(RefusedError):
        scene.collector.accept_push(header_of(wanted, **changes), ANYBODY, lambda: None)
    await scene.stopped(session)


async def test_a_second_push_for_one_order_waits_for_the_first_to_break() -> None:
    scene = Scene()
    session = scene.joins()
    header = header_of(await scene.wanted())
    scene.collector.accept_push(header, ANYBODY, lambda: None)
    with pytest.raises(RefusedError, match="already"):
        scene.collector.accept_push(header, ANYBODY, lambda: None)
    scene.collector.push_failed(header, "the connection broke")
    scene.collector.accept_push(header, ANYBODY, lambda: None)
    await scene.stopped(session)


@pytest.mark.parametrize(
    "more",
    [{"held": (6,)}, {"held": (0, 0)}, {"held": (9, 9)}, {"held_epoch": "2.ab"}, {"learner": "r/p/77"}],
    ids=str,
)
async def test_who_has_nothing_to_give_is_told_to_come_again(more: dict[str, Any]) -> None:
    scene = Scene(WHO, OTHER)
    with pytest.raises(UnavailableError, match="join again"):
        await scene.joins(**more)
    await scene.stopped()
    assert scene.taken == {}


async def test_who_sends_nothing_is_given_up_after_the_patience() -> None:
    scene = Scene(patience_seconds=0.3, most_seconds=3600.0)
    abandoned: list[int] = []
    session = scene.joins()
    header = header_of(await scene.wanted())
    scene.collector.accept_push(header, ANYBODY, lambda: abandoned.append(1))
    await scene.over()
    await session
    assert abandoned == [1]
    assert scene.collector.push_unwanted(header) is not None


async def test_it_takes_no_longer_than_the_work_is_worth() -> None:
    scene = Scene(WHO, OTHER, patience_seconds=3600.0, most_seconds=0.3)
    session = scene.joins(held=(5, 5))
    await scene.over()
    await session
    assert scene.taken == {}
    with pytest.raises(UnavailableError):
        await scene.joins()


async def test_what_a_learner_no_longer_holds_is_not_waited_for() -> None:
    scene = Scene()
    answers: asyncio.Queue[LearnerMessage] = asyncio.Queue()

    async def inbound() -> AsyncIterator[LearnerMessage]:
        while True:
            yield await answers.get()

    session = scene.joins(inbound=inbound)
    for _ in range(2):
        wanted = await scene.wanted()
        answers.put_nowait(Declined(0, wanted.fragment, wanted.version, wanted.attempt))
    answers.put_nowait(Declined(0, 4_000_000_000, 1, 1))  # of a fragment that there is not
    await scene.over()
    await session
    assert scene.taken == {}


async def test_other_messages_end_the_session() -> None:
    scene = Scene()

    async def inbound() -> AsyncIterator[LearnerMessage]:
        yield Ready(1)

    with pytest.raises(InvalidMessageError, match="Ready is not expected before Welcome"):
        await scene.joins(inbound=inbound)
    await scene.over()


async def test_a_process_that_joins_again_replaces_its_session() -> None:
    scene = Scene()
    first = scene.joins()
    await scene.wanted()
    second = scene.joins()
    await first
    for _ in range(2):
        assert (await scene.sends(await scene.wanted())).accepted
    await scene.over()
    await second


async def test_a_learner_of_another_job_is_refused_and_nothing_can_be_pulled() -> None:
    scene = Scene()
    with pytest.raises(WireError, match="of job"):
        await scene.joins(job="another")
    with pytest.raises(UnavailableError):
        await scene.collector.open_pull(PullRequest(WHO, 1, 0, 0, EPOCH), ANYBODY)
    await scene.stopped()
