"""An executor with all that it acts on, and an engine that orders what the test says and decides nothing."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from diloco.core.actions import Action, Admit, Finish, Member, Merge
from diloco.core.codec import codec_named
from diloco.core.engine import Progress
from diloco.core.events import Event
from diloco.core.merge import BlockRunner, in_this_thread
from diloco.spec.outer_choice import AVERAGE, OuterChoice
from diloco.spec.sync import SyncSpec
from diloco.syncer.action_executor import ActionExecutor
from diloco.syncer.disk.checkpoint import CheckpointContent
from diloco.syncer.disk.checkpointer import Checkpointer
from diloco.syncer.engine_loop import EngineLoop
from diloco.syncer.merging import Merging
from diloco.syncer.peers.admission import Admission
from diloco.syncer.peers.claims import ClaimLimits, Claims
from diloco.syncer.peers.inbox import Inbox, PushClaim, PushKey
from diloco.syncer.peers.link_meter import LinkMeter
from diloco.syncer.peers.loads import Loads
from diloco.syncer.peers.posted_pulls import PostedPulls
from diloco.syncer.peers.sessions import Sessions
from diloco.syncer.reporting.metrics import SyncerMetrics
from diloco.syncer.store import FragmentStore, digest_of
from diloco.tape.limits import TapeLimits
from diloco.tape.reader import TapeHeader
from diloco.tape.writer import TapeWriter
from diloco.wire.messages import Join, LearnerMessage, SyncerMessage
from tests.support.syncer_peers import BESIDE, LAYOUT, WHO

LEARNERS = (WHO, BESIDE)
WAIT_SECONDS = 60.0
_HEADER = TapeHeader(job={}, layout="", epoch=1, base_checkpoint="", record=False, engine={}, started_at=0.0)

E = TypeVar("E", bound=Event)


@dataclass
class OrderedEngine:
    """Answers each kind of event with the actions that the test sets for it."""

    answers: dict[type[Any], list[Action]] = field(default_factory=dict)
    finished: bool = False
    progress: Progress = field(default_factory=lambda: Progress(127.6, 1000, 3))
    told: "asyncio.Queue[Event]" = field(default_factory=asyncio.Queue)

    def step(self, event: Event, now: float) -> list[Action]:
        del now
        self.told.put_nowait(event)
        return self.answers.get(type(event), [])


OUTER = OuterChoice(optimizer=AVERAGE)


class Scene:
    """Two fragments of zeros at version 0; outer gradients are merged by their mean and subtracted."""

    def __init__(self, folder: Path, *, record: bool, downlink: str, run_blocks: BlockRunner) -> None:
        sync = SyncSpec.model_validate(
            {
                "merge": "Mean",
                "fragments": 2,
                "interval": 2,
                "compression": "None",
                "downlink": downlink,
            }
        )
        codec = codec_named("None")
        self.checkpoints, self.payloads = folder / "checkpoints", folder / "payloads"
        self.checkpoints.mkdir()
        self.engine = OrderedEngine()
        self.metrics = SyncerMetrics()
        self.store = FragmentStore(LAYOUT, residuals=downlink != "F32")
        for fragment in LAYOUT.fragments:
            self.store.put(fragment.index, 0, torch.zeros(fragment.numel))
        self.inbox = Inbox(LAYOUT, codec)
        self.posted = PostedPulls(WAIT_SECONDS)
        self.captured: list[tuple[str, tuple[int, ...]]] = []
        """Of every checkpoint: its reason, and the versions in it."""
        self.over: list[Finish] = []
        self.sent: dict[str, list[SyncerMessage]] = defaultdict(list)
        self._tape = TapeWriter(folder / "tape", _HEADER, TapeLimits())
        self._disk = ThreadPoolExecutor(1)
        self._sessions_open: list[asyncio.Task[None]] = []
        self.engine_loop = EngineLoop(self.engine, self._tape, time.monotonic)  # type: ignore[arg-type]
        self.checkpointer = Checkpointer(
            self.checkpoints,
            2,
            capture=self._capture,
            release=self.store.release,
            check=lambda _: None,
            metrics=self.metrics,
        )
        self.checkpointer.start(self._disk)
        self.sessions = Sessions(
            job="job",
            layout=LAYOUT,
            epoch="1",
            store=self.store,
            claims=Claims(ClaimLimits(lambda _: 64, frozenset({"r/p"}), 16, 10_000, 6), lambda: None, time.monotonic),
            meter=LinkMeter(time.monotonic),
            admission=Admission(LEARNERS),
            loads=Loads(time.monotonic),
            clock=time.monotonic,
            post=self.engine_loop.post,
        )
        self.executor = ActionExecutor(
            engine_loop=self.engine_loop,
            sessions=self.sessions,
            inbox=self.inbox,
            store=self.store,
            posted=self.posted,
            merging=Merging(LAYOUT, sync, AVERAGE, run_blocks),
            checkpointer=self.checkpointer,
            metrics=self.metrics,
            payloads=self.payloads if record else None,
            threads=1,
            finish=self.over.append,
        )

    def order(self, *orders: Action) -> None:
        """The engine decides this."""
        for action in orders:
            self.executor.carry_out(action, 0.0)

    async def told(self, kind: type[E]) -> E:
        """Wait until the engine is told of such an event; raises what ended the engine's loop."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                hears = asyncio.ensure_future(self.engine.told.get())
                ends: set[asyncio.Future[Any]] = {hears, self.engine_loop.failed}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if not hears.done():
                    hears.cancel()
                    self.engine_loop.failed.result()
                if isinstance(event := await hears, kind):
                    return event

    async def joining(self, learner: str, instance: str = "process") -> None:
        """A process of this learner opens a session."""

        async def silence() -> AsyncIterator[LearnerMessage]:
            await asyncio.get_running_loop().create_future()
            yield  # type: ignore[misc]  # it never comes to that

        join = Join("job", learner, instance, LAYOUT.digest)
        serving = self.sessions.serve(join, silence(), self.sent[learner].append)
        self._sessions_open.append(asyncio.ensure_future(serving))
        await turns()

    async def joined(self, learner: str, incarnation: int = 1) -> None:
        """The engine has admitted it."""
        await self.joining(learner)
        self.order(Admit(learner, "process", incarnation, (), self.store.versions, 0, 0, "it is planned"))
        self.sent[learner].clear()

    def arrived(self, key: PushKey, value: float) -> Member:
        """An outer gradient of ones times ``value`` is here; its part in a merge of it alone."""
        self.inbox.ask(key)
        buffer = self.inbox.open(key, PushClaim(key.version - 1, "None", 4 * numel_of(key.fragment)), lambda: None)
        buffer.copy_(torch.full((numel_of(key.fragment),), value).view(torch.uint8))
        assert self.inbox.accept(key)
        return Member(key.learner, key.incarnation, key.attempt, key.version - 1, 1, 64, 1.0, digest_of(buffer).hex())

    def merge_of(self, fragment: int, version: int, value: float) -> Merge:
        """A merge of what one learner has pushed."""
        return Merge(fragment, version, (self.arrived(PushKey(LEARNERS[0], 1, fragment, version, 1), value),), "due")

    def counted(self, metric: str) -> float:
        """The value of a counter without labels."""
        value = self.metrics.registry.get_sample_value(metric)
        assert value is not None, metric
        return value

    async def close(self) -> None:
        self.engine_loop.stop()
        for session in self._sessions_open:
            session.cancel()
        await asyncio.gather(*self._sessions_open, return_exceptions=True)
        self.posted.stop()
        await self.checkpointer.idle()
        self.executor.close()
        self._disk.shutdown()
        self._tape.close()

    def _capture(self, reason: str) -> CheckpointContent:
        self.captured.append((reason, self.store.versions))
        return CheckpointContent("job", LAYOUT, 1, self.store.hold(), {}, OUTER, reason)


def numel_of(fragment: int) -> int:
    return LAYOUT.fragments[fragment].numel


async def turns(count: int = 10) -> None:
    """Let everything on the event loop that can go on do so."""
    for _ in range(count):
        await asyncio.sleep(0)


@asynccontextmanager
async def scene(
    folder: Path, *, record: bool = False, downlink: str = "F32", run_blocks: BlockRunner = in_this_thread
) -> AsyncIterator[Scene]:
    made = Scene(folder, record=record, downlink=downlink, run_blocks=run_blocks)
    made.engine_loop.start(made.executor)
    try:
        yield made
    finally:
        await made.close()
