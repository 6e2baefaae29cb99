"""The syncer's side of the wire without an engine: a test does what an engine would, and sees what one would be told.

Messages are handed over in this process; whatever they are checked against is real.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from diloco.core.dealing.agreement import Known
from diloco.core.dealing.dealer import Dealer, Revoked
from diloco.core.engine.actions import Admit
from diloco.core.engine.events import Event
from diloco.core.fragments import Layout, TensorSpec, partition
from diloco.core.merge.codecs import codec_named
from diloco.syncer.peers.admission import Admission
from diloco.syncer.peers.claims import ClaimLimits, Claims
from diloco.syncer.peers.collaborators import Collaborators
from diloco.syncer.peers.dealing import Ahead, Dealing
from diloco.syncer.peers.service import SyncService
from diloco.syncer.peers.sessions import Sessions
from diloco.syncer.reporting.metrics import SyncerMetrics
from diloco.syncer.store import FragmentStore
from diloco.wire.errors import WireError
from diloco.wire.messages import Join, LearnerMessage, Progress, StepReport, SyncerMessage
from diloco.wire.tls.tls import Peer
from tests.support.hand_clock import HandClock

JOB, EPOCH = "job", "3"
WHO, BESIDE, THIRD = "r/p/0", "r/p/1", "r/p/2"
INCARNATION = 7
LAYOUT = partition([TensorSpec("a", (10,), embedding=False), TensorSpec("b", (6,), embedding=False)], 2)
VERSION = 4
"""Of every fragment."""
BOUND_STEPS = 6
TOKENS_PER_STEP = 64
PROGRESS = Progress(0, 10_000, 0)
ANYBODY = Peer("test")


async def settle() -> None:
    """Let everything happen that is about to."""
    for _ in range(30):
        await asyncio.sleep(0)


def report(step: int, incarnation: int = INCARNATION, **more: Any) -> StepReport:
    """What a learner says after an inner step, if it has made them all."""
    return StepReport(incarnation, step, TOKENS_PER_STEP * step, 0.5, 2.0, 4 * step, **more)


class SyncerPeers:
    """Everything that a message may touch: a store of zeros, and what reads and changes it."""

    def __init__(
        self,
        *,
        layout: Layout = LAYOUT,
        version: int = VERSION,
        residuals: bool = False,
        training: str = "",
        post: Callable[[Event], None] | None = None,
    ) -> None:
        """``post``: default: to `events`."""
        self.clock = HandClock()
        self.events: list[Event] = []
        self.checks = ThreadPoolExecutor(1)
        self.metrics = SyncerMetrics()
        self.store = FragmentStore(layout, residuals=residuals)
        for fragment in layout.fragments:
            self.store.put(fragment.index, version, torch.zeros(fragment.numel))
        limits = ClaimLimits(lambda _: TOKENS_PER_STEP, BOUND_STEPS, lambda: 10**6, 16)
        self.recorded: list[int] = []
        """Marks that are on disk."""
        self.revoked: Revoked = {}
        self.known: Known | None = None
        """On disk: the data that is dealt."""
        self.disk_full = False
        ahead = Ahead(lambda _: TOKENS_PER_STEP // 16, BOUND_STEPS, 2, 16)
        self.dealing = Dealing(Dealer(), ahead, self._record, [WHO, BESIDE, THIRD])
        self.collaborators = Collaborators(
            job=JOB,
            epoch=EPOCH,
            layout=layout,
            codec=codec_named("None"),
            store=self.store,
            dealing=self.dealing,
            claims=Claims(limits, self.metrics.claims_refused.inc, self.clock),
            admission=Admission([WHO, BESIDE, THIRD]),
            metrics=self.metrics,
            checks=self.checks,
            post=post or self.events.append,
            clock=self.clock,
        )
        self.inbox, self.posted = self.collaborators.inbox, self.collaborators.posted
        self.loads, self.meter = self.collaborators.loads, self.collaborators.meter
        self.sessions = Sessions(self.collaborators, training=training)
        self.service = SyncService(self.collaborators, self.sessions)

    def _record(self, mark: int, _: object, revoked: Revoked, known: Known) -> None:
        if self.disk_full:
            raise OSError(28, "No space left on device")
        self.recorded.append(mark)
        self.revoked, self.known = revoked, known

    def count(self, name: str, **labels: str) -> float:
        """The value of a metric."""
        value = self.metrics.registry.get_sample_value(name, labels)
        assert value is not None, name
        return value

    async def payloads_checked(self) -> None:
        """Wait until the payloads that have arrived are checked."""
        await settle()
        await asyncio.get_running_loop().run_in_executor(self.checks, int)
        await settle()

    async def join(self, learner: str = WHO, instance: str = "process", peer: Peer = ANYBODY, **more: Any) -> "Joined":
        """A process opens its session."""
        joined = Joined(
            self,
            Join(
                **{"job": JOB, "layout_digest": self.collaborators.layout.digest} | more,
                learner=learner,
                instance=instance,
            ),
            peer,
        )
        await settle()
        return joined

    def admit(
        self,
        learner: str = WHO,
        instance: str = "process",
        incarnation: int = INCARNATION,
        steps: int = 0,
        load: tuple[int, ...] = (),
    ) -> None:
        """The engine admits a process."""
        counts = (steps, 4 * steps, steps, TOKENS_PER_STEP * steps)
        action = Admit(learner, instance, incarnation, load, self.store.versions, *counts, "it is planned")
        self.sessions.admit(action, PROGRESS)

    async def admitted(self, learner: str = WHO, incarnation: int = INCARNATION) -> "Joined":
        """A process joins and is admitted; what was told and posted until then is forgotten."""
        joined = await self.join(learner)
        self.admit(learner, incarnation=incarnation)
        joined.told.clear()
        self.events.clear()
        return joined


class Joined:
    """A process that has opened its session."""

    def __init__(self, peers: SyncerPeers, join: Join, peer: Peer) -> None:
        self.told: list[SyncerMessage] = []
        self.unreachable: WireError | None = None
        """What sending to it raises."""
        self._said: asyncio.Queue[LearnerMessage | WireError | None] = asyncio.Queue()
        self._session = asyncio.ensure_future(peers.service.session(join, peer, self._inbound(), self._send))

    async def say(self, *messages: LearnerMessage | WireError) -> None:
        """The process sends messages, or what raises this error because it is none."""
        for message in messages:
            self._said.put_nowait(message)
        await settle()

    def hang_up(self) -> None:
        """The process sends no more."""
        self._said.put_nowait(None)

    @property
    def over(self) -> bool:
        """Whether the syncer has ended the session."""
        return self._session.done()

    @property
    def problem(self) -> BaseException | None:
        """What it ended with; None: nothing was wrong."""
        return self._session.exception()

    async def break_off(self) -> None:
        """The server stops, or the call is cancelled."""
        self._session.cancel()
        await settle()

    async def _inbound(self) -> AsyncIterator[LearnerMessage]:
        while (message := await self._said.get()) is not None:
            if isinstance(message, WireError):
                raise message
            yield message

    def _send(self, message: SyncerMessage) -> None:
        if self.unreachable is not None:
            raise self.unreachable
        self.told.append(message)
