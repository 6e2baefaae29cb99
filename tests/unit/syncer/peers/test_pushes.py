"""Which pushes are taken in, what is checked before they reach the engine, and that the others leave nothing behind."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from diloco.core.engine.events import Event, FragmentArrived, FragmentLate, LearnerLeft
from diloco.core.sizes import BLOCK, encoding_of
from diloco.syncer.peers import service
from diloco.syncer.peers.link_meter import Rates
from diloco.wire.errors import IdentityError, RefusedError
from diloco.wire.messages import PullRequest, PushHeader, PushKey, PushReceipt
from diloco.wire.tls.tls import Peer
from tests.support.syncer_peers import (
    ANYBODY,
    BESIDE,
    EPOCH,
    INCARNATION,
    TOKENS_PER_STEP,
    VERSION,
    WHO,
    Joined,
    SyncerPeers,
    settle,
)

KEY = PushKey(WHO, INCARNATION, 0, VERSION + 1, 1)
STEPS = 3
HEADER = PushHeader(
    WHO, INCARNATION, 0, VERSION + 1, 1, VERSION, STEPS, TOKENS_PER_STEP * STEPS, "None", 40, EPOCH, bytes(16)
)
"""What a push of fragment 0 says that is right."""
LATE, GONE = FragmentLate(*KEY), LearnerLeft(WHO, INCARNATION, clean=False)


def payload(value: float) -> bytes:
    """Ten times this, in f32."""
    return torch.full((10,), value).numpy().tobytes()


NOT_ASKED = PushReceipt(accepted=False, reason="it is no longer requested")


class Scene:
    """A learner that has been asked for fragment 0."""

    def __init__(self, peers: SyncerPeers, joined: Joined) -> None:
        self.peers, self.joined = peers, joined
        self.service, self.inbox = peers.service, peers.inbox
        self.abandoned = 0
        self.inbox.ask(KEY)

    def begin(self, header: PushHeader = HEADER, peer: Peer = ANYBODY, value: float = 0.5) -> None:
        """The header arrives, and then the payload."""
        buffer = self.service.accept_push(header, peer, self._abandon)
        buffer[:] = payload(value)

    async def push(self, header: PushHeader = HEADER, value: float = 0.5) -> PushReceipt:
        """The whole push arrives."""
        self.begin(header, value=value)
        return await self.service.pushed(header)

    @property
    def left(self) -> tuple[Sequence[Event], int, int]:
        """What the engine was told, how many pushes were refused, and how many bytes are held."""
        return self.peers.events, int(self.peers.count("diloco_pushes_refused_total")), self.inbox.held_bytes

    def _abandon(self) -> None:
        self.abandoned += 1


@pytest.fixture
def at(runner: asyncio.Runner, peers: SyncerPeers) -> Scene:
    return Scene(peers, runner.run(peers.admitted()))


async def test_a_push_that_was_asked_for_is_kept_and_the_engine_told(at: Scene) -> None:
    at.begin()
    assert at.inbox.held_bytes == 40
    assert at.service.push_unwanted(HEADER) is None
    assert await at.service.pushed(HEADER) == PushReceipt(accepted=True)
    arrived = FragmentArrived(WHO, INCARNATION, 0, 5, 1, VERSION, STEPS, 192, 40, "00000000000000000000000000000000")
    assert at.left == ([arrived], 0, 40)
    assert at.inbox.payload(KEY).numpy().tobytes() == payload(0.5)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"epoch": "2"}, "syncer epoch is 3, not '2': the syncer has restarted"),
        ({"incarnation": 6}, "incarnation 6 of r/p/0 has no session here"),
        ({"payload_bytes": 2**50}, "is 40 bytes in codec None, not"),
    ],
)
async def test_what_was_not_asked_for_is_refused_before_it_takes_memory(
    at: Scene, changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(RefusedError, match=text):
        at.begin(replace(HEADER, **changes))
    assert at.left == ([], 1, 0)
    await at.joined.say()
    assert not at.joined.over


@pytest.mark.parametrize("peer", [Peer("test", BESIDE, "job"), Peer("test", WHO, "other")])
async def test_a_certificate_joins_pushes_and_pulls_only_for_its_own_learner(at: Scene, peer: Peer) -> None:
    assert isinstance((await at.peers.join(WHO, peer=peer)).problem, IdentityError)
    with pytest.raises(IdentityError):
        at.begin(peer=peer)
    with pytest.raises(IdentityError):
        await at.service.open_pull(PullRequest(WHO, INCARNATION, 0, VERSION, EPOCH), peer)
    assert at.left == ([], 0, 0)


async def test_who_claims_more_tokens_than_its_steps_have_loses_its_session(at: Scene) -> None:
    with pytest.raises(RefusedError, match="r/p/0 claims 193 tokens in 3 steps"):
        at.begin(replace(HEADER, tokens=193))
    await at.joined.say()
    assert "claims 193 tokens" in str(at.joined.problem)
    assert at.left == ([GONE], 1, 0)


async def test_a_payload_that_is_no_number_is_refused_and_may_come_again(at: Scene) -> None:
    receipt = await at.push(value=float("nan"))
    assert not receipt.accepted
    assert "not finite" in receipt.reason
    assert at.left == ([], 1, 0)
    assert (await at.push()).accepted


async def test_a_push_after_its_round_is_refused_and_told_as_late_once(at: Scene) -> None:
    at.inbox.void_version(0, VERSION + 1)
    for _ in range(2):
        with pytest.raises(RefusedError, match="not requested, or no longer is"):
            at.begin()
    assert at.left == ([LATE], 2, 0)


async def test_a_push_whose_round_ends_meanwhile_is_told_so_and_late(at: Scene) -> None:
    at.begin()
    at.inbox.void_version(0, VERSION + 1)
    assert at.abandoned == 1
    assert at.service.push_unwanted(HEADER) == "it is no longer requested"
    at.service.push_failed(HEADER, "it is no longer requested")
    assert at.left == ([LATE], 0, 0)


async def test_a_push_complete_after_its_round_is_late_and_its_memory_freed(at: Scene) -> None:
    at.begin()
    at.inbox.void_version(0, VERSION + 1)
    assert await at.service.pushed(HEADER) == NOT_ASKED
    assert at.left == ([LATE], 1, 0)


async def test_of_a_learner_that_has_gone_no_late_push_is_told(at: Scene) -> None:
    at.begin()
    at.joined.hang_up()
    await settle()
    at.inbox.void_version(0, VERSION + 1)
    at.service.push_failed(HEADER, "the connection broke")
    assert at.peers.events == [GONE]


async def test_a_push_that_breaks_off_is_freed_and_may_come_again(at: Scene) -> None:
    at.begin()
    at.service.push_failed(HEADER, "the connection broke")
    assert at.left == ([], 0, 0)
    assert (await at.push()).accepted


@pytest.fixture
def checked_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a large payload is."""
    monkeypatch.setattr(service, "CHECKED_AT_ONCE_BYTES", 0)


@pytest.mark.parametrize(
    ("density", "numel", "at_once"), [(None, BLOCK, True), (1 / 4, BLOCK, False), (1 / 4, BLOCK // 8, True)]
)
def test_a_sparse_payload_is_checked_at_once_if_it_is_small(density: float | None, numel: int, at_once: bool) -> None:
    encoding = encoding_of("TopK", density)
    assert service.checked_at_once(encoding, encoding.payload_bytes(numel), numel) is at_once
    assert service.checked_at_once(encoding_of("Int4", None), encoding.payload_bytes(numel), numel)


async def push_during_which(at: Scene, happens: Callable[[asyncio.Future[PushReceipt]], object]) -> PushReceipt:
    """A push that is complete, and during whose check something happens."""
    go_on = threading.Event()
    at.peers.checks.submit(go_on.wait)
    at.begin()
    pushing = asyncio.ensure_future(at.service.pushed(HEADER))
    await settle()
    happens(pushing)
    await settle()
    go_on.set()
    return await pushing


@pytest.mark.usefixtures("checked_in_a_thread")
async def test_a_push_that_is_no_longer_wanted_once_checked_is_dropped(at: Scene) -> None:
    assert await push_during_which(at, lambda _: at.inbox.void_version(0, VERSION + 1)) == NOT_ASKED
    assert at.left == ([], 1, 0)


@pytest.mark.usefixtures("checked_in_a_thread")
async def test_a_push_whose_learner_has_gone_once_checked_is_dropped(at: Scene) -> None:
    assert await push_during_which(at, lambda _: at.joined.hang_up()) == NOT_ASKED
    assert at.left == ([GONE], 1, 0)


@pytest.mark.usefixtures("checked_in_a_thread")
async def test_a_push_that_the_stop_of_the_syncer_cuts_short_is_freed(at: Scene) -> None:
    with pytest.raises(asyncio.CancelledError):
        await push_during_which(at, lambda pushing: pushing.cancel())
    assert at.left == ([], 0, 0)


async def test_pushes_are_timed_from_their_headers_to_their_ends(at: Scene) -> None:
    meter, clock = at.peers.meter, at.peers.clock
    meter.sample(clock.now)
    for number, ends in enumerate(("complete", "broken off", "complete"), start=1):
        key = KEY._replace(version=VERSION + number)
        header = replace(HEADER, version=VERSION + number, steps=0, tokens=0)
        at.inbox.ask(key)
        at.begin(header)
        clock.now += 10.0
        if ends == "complete":
            assert (await at.service.pushed(header)).accepted
        else:
            at.service.push_failed(header, "the connection broke")
        clock.now += 10.0
        meter.sample(clock.now)
    assert meter.rates(WHO) == Rates(up=(0 + 40) / (10.0 + 10.0))  # since the first sample after it began
