"""An executor with all that it acts on, and an engine that orders what the test says and decides nothing."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from diloco.core.engine.actions import Action, Finish, Member, Merge
from diloco.core.engine.engine import Progress
from diloco.core.engine.events import Event
from diloco.core.merge.fragment_merge import BlockRunner, in_this_thread
from diloco.spec.outer_choice import AVERAGE, OuterChoice
from diloco.spec.sync import SyncSpec
from diloco.syncer.action_executor import ActionExecutor, MergeWork
from diloco.syncer.disk.checkpoint import CheckpointContent
from diloco.syncer.disk.checkpointer import Checkpointer
from diloco.syncer.engine_loop import EngineLoop
from diloco.syncer.merging import Merging
from diloco.syncer.store import digest_of
from diloco.tape.keeper import TapeLimits
from diloco.tape.writer import TapeWriter
from diloco.wire.messages import PushHeader, PushKey
from tests.support.syncer_peers import LAYOUT, WHO, SyncerPeers
from tests.support.tape_headers import tape_header

WAIT_SECONDS = 60.0
E = TypeVar("E", bound=Event)


@dataclass
class OrderedEngine:
    """Hears every event and orders nothing itself."""

    finished: bool = False
    progress: Progress = field(default_factory=lambda: Progress(127.6, 1000, 3))
    told: "asyncio.Queue[Event]" = field(default_factory=asyncio.Queue)

    def step(self, event: Event, now: float) -> list[Action]:
        del now
        self.told.put_nowait(event)
        return []


class Scene(SyncerPeers):
    """Two fragments of zeros at version 0; outer gradients are merged by their mean and subtracted."""

    def __init__(self, folder: Path, *, record: bool, downlink: str, run_blocks: BlockRunner) -> None:
        plain = {"merge": "Mean", "fragments": 2, "interval": 2, "compression": "None", "downlink": downlink}
        sync = SyncSpec.model_validate(plain)
        self.engine = OrderedEngine()
        self._tape = TapeWriter(folder / "tape", tape_header(), TapeLimits())
        self.engine_loop = EngineLoop(self.engine, self._tape, time.monotonic)  # type: ignore[arg-type]
        super().__init__(version=0, residuals=downlink != "F32", post=self.engine_loop.post)
        self.checkpoints, self.payloads = folder / "checkpoints", folder / "payloads"
        self.checkpoints.mkdir()
        self.captured: list[tuple[str, tuple[int, ...]]] = []
        """Of every checkpoint: its reason, and the versions in it."""
        self.ended: list[Finish] = []
        self.checkpointer = Checkpointer(
            self.checkpoints,
            2,
            self.checks,
            capture=self._capture,
            release=self.store.release,
            check=lambda _: None,
            metrics=self.metrics,
        )
        merging, payloads = Merging(LAYOUT, sync, AVERAGE, run_blocks), self.payloads if record else None
        work = MergeWork(merging, 1, self.checkpointer, payloads, self.ended.append, lambda call: call())
        self.executor = ActionExecutor(self.collaborators, self.sessions, self.engine_loop, work)

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

    def arrived(self, key: PushKey, value: float) -> Member:
        """An outer gradient of ones times ``value``, of 1,000 steps, is here; its part in a merge of it alone."""
        self.inbox.ask(key)
        buffer = self.inbox.open(push_of(key), lambda: None)
        buffer.copy_(torch.full((numel_of(key.fragment),), value).view(torch.uint8))
        assert self.inbox.accept(key)
        base, digest = key.version - 1, digest_of(buffer).hex()
        return Member(key.learner, key.incarnation, key.attempt, base, 1000, 64, 1.0, digest)

    def merge_of(self, fragment: int, version: int, value: float) -> Merge:
        """A merge of what one learner has pushed."""
        return Merge(fragment, version, (self.arrived(PushKey(WHO, 1, fragment, version, 1), value),), "due")

    async def close(self) -> None:
        self.engine_loop.stop()
        self.posted.stop()
        await self.checkpointer.idle()
        self.executor.close()
        self.checks.shutdown()
        self._tape.close()

    def _capture(self, reason: str) -> CheckpointContent:
        self.captured.append((reason, self.store.versions))
        return CheckpointContent("job", LAYOUT, 1, self.store.hold(), {}, OuterChoice(optimizer=AVERAGE), reason)


def numel_of(fragment: int) -> int:
    return LAYOUT.fragments[fragment].numel


def push_of(key: PushKey) -> PushHeader:
    """What a push says that answers a request."""
    size = 4 * numel_of(key.fragment)
    return PushHeader(*key, key.version - 1, steps=1, tokens=1, codec="None", payload_bytes=size, epoch="1")


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
