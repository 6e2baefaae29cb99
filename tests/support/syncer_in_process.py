"""A syncer in this process and in virtual time, without its servers, and learners that talk to it without a network.

Its disk, its threads and its merges are real.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from diloco.core.merge.codecs import codec_named
from diloco.syncer.disk.directory import SyncerDirectory
from diloco.syncer.options import SyncerOptions
from diloco.syncer.prepare import prepare, with_first_checkpoint
from diloco.syncer.syncer import Syncer
from diloco.wire.errors import RefusedError
from diloco.wire.messages import (
    Alive,
    Applied,
    EvaluationReport,
    EvaluationWanted,
    Finished,
    FragmentReady,
    FragmentWanted,
    Join,
    LearnerMessage,
    Leave,
    PushHeader,
    Ready,
    Refused,
    StepReport,
    SyncerMessage,
    Welcome,
)
from diloco.wire.part_messages import payload_digest
from diloco.wire.tls.tls import Peer
from tests.support.syncer_process import SmallJob

TOKENS_PER_STEP = 64
PEER = Peer("test")


@asynccontextmanager
async def life_of(
    job: SmallJob, folder: Path, *, spoil: Callable[[], object] = lambda: None, **options: Any
) -> AsyncIterator[Syncer]:
    """One life of a syncer. ``spoil`` is called just before it is built."""
    with SyncerDirectory(folder) as directory:
        start_state = prepare(job.job, directory.checkpoints)
        epoch = directory.begin_epoch()
        if not start_state.checkpoint:
            start_state = with_first_checkpoint(job.job, directory, start_state, epoch)
        spoil()
        chosen = replace(SyncerOptions(job.job, folder, threads=1), **options)
        syncer = Syncer(chosen, directory, start_state, epoch, asyncio.get_running_loop().time)
        try:
            yield syncer
        finally:
            syncer.stop_serving()
            syncer.close()


@asynccontextmanager
async def running(job: SmallJob, folder: Path, **options: Any) -> AsyncIterator[tuple[Syncer, asyncio.Task[int]]]:
    """A life of a syncer that serves until it is over by itself, or the test has seen enough; its exit code."""
    async with life_of(job, folder, **options) as syncer:
        syncer.start()
        run = asyncio.create_task(syncer.until_over(asyncio.Event()))
        yield syncer, run
        run.cancel()


class NearLearner:
    """A learner process without a model and without a network. Its outer gradients are noise."""

    def __init__(self, syncer: Syncer, job: SmallJob, index: int = 0, process: str = "first") -> None:
        self._service, self._job = syncer.service, job
        self.id = f"here/cpu/{index}"
        self.process = process
        self.finished: Finished | None = None
        self.refused: Refused | None = None
        self.welcome: Welcome | None = None
        self.told: asyncio.Queue[SyncerMessage] = asyncio.Queue()
        self.steps = 0
        self._said: asyncio.Queue[LearnerMessage | None] = asyncio.Queue()
        self._session: asyncio.Task[None] | None = None
        self._codec = codec_named("None")
        self._random = torch.Generator().manual_seed(index)
        self._versions = [0] * len(job.layout.fragments)
        self._received_at = [0] * len(job.layout.fragments)

    async def join(self) -> SyncerMessage:
        """Open a session; the answer."""
        join = Join(self._job.name, self.id, self.process, self._job.layout.digest)
        self._session = asyncio.create_task(self._service.session(join, PEER, self._inbound(), self.told.put_nowait))
        answer = await self.told.get()
        if isinstance(answer, Welcome):
            self.welcome = answer
            self._versions = list(answer.versions)
            self.steps = answer.steps
            self._received_at = [self.steps] * len(self._versions)
        return answer

    async def begin(self) -> "NearLearner":
        """Join and begin to train."""
        answer = await self.join()
        assert isinstance(answer, Welcome), answer
        self.say(Ready(answer.incarnation))
        return self

    @property
    def incarnation(self) -> int:
        """Of its session."""
        assert self.welcome is not None
        return self.welcome.incarnation

    @property
    def epoch(self) -> str:
        """Of the syncer that let it in."""
        assert self.welcome is not None
        return self.welcome.epoch

    def say(self, message: LearnerMessage) -> None:
        """Send a message on the session."""
        self._said.put_nowait(message)

    def step(self) -> None:
        """Report one more inner step of a second."""
        self.steps += 1
        tokens = self.steps * TOKENS_PER_STEP
        self.say(StepReport(self.incarnation, self.steps, tokens, 1.0, 5.0 / self.steps, 4 * self.steps))

    async def train(self, enough: Callable[[], bool] = lambda: False) -> None:
        """Make a step every second, and do as it is told, until ``enough`` or the end of the job."""
        while not enough() and self.finished is None:
            if self.steps - min(self._received_at) < self._job.job.spec.sync.staleness_bound_steps:
                self.step()
            else:
                self.say(Alive(self.incarnation))
            await asyncio.sleep(1.0)
            while not self.told.empty():
                await self._obey(self.told.get_nowait())

    async def stay(self) -> None:
        """Say that it is there, for ever."""
        while True:
            self.say(Alive(self.incarnation))
            await asyncio.sleep(1.0)

    async def leave(self) -> None:
        """Say goodbye."""
        self.say(Leave(self.incarnation, "the test has ended"))
        await self.hang_up()

    async def hang_up(self) -> None:
        """End the session."""
        assert self._session is not None
        self._said.put_nowait(None)
        await self._session

    def gradient(self, wanted: FragmentWanted) -> tuple[PushHeader, bytes]:
        """An answer to a request: noise."""
        fragment = wanted.fragment
        noise = 0.01 * torch.randn(self._job.layout.fragments[fragment].numel, generator=self._random)
        payload = self._codec.encode(noise).numpy().tobytes()
        steps = self.steps - self._received_at[fragment]
        header = PushHeader(
            self.id,
            self.incarnation,
            fragment,
            wanted.version,
            wanted.attempt,
            self._versions[fragment],
            steps,
            steps * TOKENS_PER_STEP,
            self._codec.name,
            len(payload),
            self.epoch,
            payload_digest(memoryview(payload)),
        )
        return header, payload

    async def push(self, wanted: FragmentWanted) -> None:
        """Answer a request."""
        header, payload = self.gradient(wanted)
        self._service.accept_push(header, PEER, lambda: None)[:] = payload
        await self._service.pushed(header)

    async def wanted(self) -> FragmentWanted:
        """Make a step every second until a fragment is asked for."""
        while True:
            self.step()
            await asyncio.sleep(1.0)
            while not self.told.empty():
                message = self.told.get_nowait()
                if isinstance(message, FragmentWanted):
                    return message
                await self._obey(message)

    async def _obey(self, message: SyncerMessage) -> None:
        match message:
            case FragmentWanted():
                with contextlib.suppress(RefusedError):  # its round may be over
                    await self.push(message)
            case FragmentReady(fragment, version):
                self._versions[fragment], self._received_at[fragment] = version, self.steps
                self.say(Applied(self.incarnation, fragment, version))
            case EvaluationWanted(evaluation):
                self.say(EvaluationReport(self.incarnation, evaluation, 2.0, exact=True))
            case Finished():
                self.finished = message
            case Refused():
                self.refused = message

    async def _inbound(self) -> AsyncIterator[LearnerMessage]:
        while (message := await self._said.get()) is not None:
            yield message
