"""A learner without a model, which speaks to a real syncer over the wire and trains on nothing.

Its outer gradients are drawn from a seed, so two runs push the same. It does only what the test calls.
"""

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Self

import torch

from diloco.core.merge.codecs import codec_named
from diloco.core.merge.downlink import apply_update
from diloco.wire.client.client import ClientOptions
from diloco.wire.errors import RefusedError, UnavailableError, WireError
from diloco.wire.messages import (
    Applied,
    EvaluationReport,
    EvaluationWanted,
    Finished,
    FragmentReady,
    FragmentWanted,
    Join,
    Leave,
    PullHeader,
    PullRequest,
    PushHeader,
    PushReceipt,
    Ready,
    Refused,
    StepReport,
    SyncerMessage,
    Welcome,
)
from diloco.wire.part_messages import payload_digest
from diloco.wire.tls.tls import ClientTls
from testbed.blocking_client import BlockingClient
from tests.support.syncer_process import SmallJob

WAIT_SECONDS = 60.0
TOKENS_PER_STEP = 64


class EndedError(RuntimeError):
    """The syncer has ended the session without a word."""


class ScriptedLearner:
    """The wire side of one learner process."""

    def __init__(
        self, address: str, job: SmallJob, learner: str, instance: str = "", tls: ClientTls | None = None
    ) -> None:
        self.client = BlockingClient(ClientOptions(address, tls=tls))
        self.job, self.layout, self.learner = job.name, job.layout, learner
        self.bound_steps = job.job.spec.sync.staleness_bound_steps
        self.instance = instance or f"instance of {learner}"
        self.codec = codec_named("None")
        self.says_what_it_holds = False
        """It takes updates."""
        self.step_seconds = 0.01
        """What it reports."""
        self.welcome: Welcome | None = None
        self.refused: Refused | None = None
        self.finished: Finished | None = None
        self.broken: WireError | None = None
        self.over = threading.Event()
        self.ended = False
        """The session is over, and its last message has been read."""
        self.versions = [0] * len(self.layout.fragments)
        self.fragments: dict[int, torch.Tensor] = {}
        self.received_at: dict[int, int] = {}
        self.steps = 0
        self.budget = 0
        """Of the job, as the syncer said last."""
        self.merged: list[tuple[int, int]] = []
        """(fragment, version) that its outer gradient is in."""
        self.headers: list[PullHeader] = []
        """Of everything it pulled."""
        self.pushes: list[tuple[PushHeader, PushReceipt | WireError]] = []
        self._inbox: queue.Queue[SyncerMessage | None] = queue.Queue()
        self._random = torch.Generator().manual_seed(sum(learner.encode()))
        self._session: Any = None

    def join(
        self, *, epoch: str = "", versions: tuple[int, ...] = (), layout_digest: str = "", **more: Any
    ) -> SyncerMessage:
        """Open a session and wait for the answer: a Welcome or a Refused."""
        digest = layout_digest or self.layout.digest
        join = Join(self.job, self.learner, self.instance, digest, epoch, versions, self.steps, self.steps, **more)
        self.broken, self.ended = None, False
        self.over.clear()
        self._inbox = queue.Queue()
        self._session = self.client.open_session(join)
        threading.Thread(target=self._listen, args=(self._session, self._inbox), daemon=True).start()
        answer = self._inbox.get(timeout=WAIT_SECONDS)
        if answer is None:
            raise self._why_ended()
        if isinstance(answer, Welcome):
            self.welcome = answer
            self.steps = answer.steps
        return answer

    def _why_ended(self) -> Exception:
        return self.broken or EndedError("the session has ended")

    def begin(self) -> Self:
        """Join, load the model and begin to train."""
        answer = self.join()
        assert isinstance(answer, Welcome), answer
        self.load(answer)
        return self

    def load(self, answer: Welcome) -> None:
        """Load the model and begin to train."""
        for fragment in answer.load:
            self.pull(fragment, answer.versions[fragment])
        self._session.send(Ready(answer.incarnation))

    @property
    def incarnation(self) -> int:
        assert self.welcome is not None
        return self.welcome.incarnation

    @property
    def epoch(self) -> str:
        assert self.welcome is not None
        return self.welcome.epoch

    def pull(self, fragment: int, minimum_version: int, **changes: Any) -> PullHeader:
        """Receive a fragment, or its update."""
        holds = self.says_what_it_holds and fragment in self.fragments
        request: dict[str, Any] = {
            "learner": self.learner,
            "incarnation": self.incarnation,
            "fragment": fragment,
            "minimum_version": minimum_version,
            "epoch": self.epoch,
            "held_version": self.versions[fragment] if holds else None,
        }
        buffer = bytearray()

        def allocate(header: PullHeader) -> memoryview:
            buffer.extend(bytes(header.payload_bytes))
            return memoryview(buffer)

        asked = PullRequest(**request | changes)
        header = self.client.pull(asked, allocate, deadline_seconds=WAIT_SECONDS)
        self.fragments[fragment] = self._received(header, buffer)
        self.versions[fragment] = header.version
        self.received_at[fragment] = self.steps
        self.headers.append(header)
        return header

    def _received(self, header: PullHeader, buffer: bytearray) -> torch.Tensor:
        if not header.codec:
            return torch.frombuffer(buffer, dtype=torch.float32)
        made = torch.empty(self.layout.fragments[header.fragment].numel)
        payload = torch.frombuffer(buffer, dtype=torch.uint8)
        apply_update(codec_named(header.codec), payload, self.fragments[header.fragment], made)
        assert payload_digest(made.numpy().data.cast("B")) == header.result_digest
        return made

    def gradient(self, fragment: int) -> torch.Tensor:
        """An outer gradient, f32, shape (numel,)."""
        return 0.01 * torch.randn(self.layout.fragments[fragment].numel, generator=self._random)

    def header(self, wanted: FragmentWanted, payload: torch.Tensor, **changes: Any) -> PushHeader:
        """The header of a push that answers ``wanted``."""
        steps = self.steps - self.received_at.get(wanted.fragment, 0)
        plain: dict[str, Any] = {
            "learner": self.learner,
            "incarnation": self.incarnation,
            "fragment": wanted.fragment,
            "version": wanted.version,
            "attempt": wanted.attempt,
            "base_version": self.versions[wanted.fragment],
            "steps": steps,
            "tokens": steps * TOKENS_PER_STEP,
            "codec": self.codec.name,
            "payload_bytes": payload.nbytes,
            "payload_digest": payload_digest(payload.numpy().data),
            "epoch": self.epoch,
        }
        return PushHeader(**plain | changes)

    def push(self, wanted: FragmentWanted, payload: torch.Tensor | None = None, **changes: Any) -> PushReceipt:
        """Push an outer gradient, or ``payload`` (uint8) as it is."""
        if payload is None:
            payload = self.codec.encode(self.gradient(wanted.fragment))
        header = self.header(wanted, payload, **changes)
        try:
            receipt = self.client.push(header, memoryview(payload.numpy().data), deadline_seconds=WAIT_SECONDS)
        except WireError as error:
            self.pushes.append((header, error))
            raise
        self.pushes.append((header, receipt))
        return receipt

    def step(self) -> None:
        """Report one more inner step."""
        self.steps += 1
        self._session.send(
            StepReport(
                self.incarnation,
                self.steps,
                self.steps * TOKENS_PER_STEP,
                self.step_seconds,
                5.0 / self.steps,
                self.steps,
            )
        )

    def step_within_bound(self) -> None:
        """Report one more inner step, unless the staleness bound of some fragment is reached."""
        oldest = min(self.received_at.get(fragment, 0) for fragment in range(len(self.layout.fragments)))
        if self.steps - oldest < self.bound_steps:
            self.step()

    def next(self, timeout: float = WAIT_SECONDS) -> SyncerMessage | None:
        """The next message; None if the session is over."""
        return self._inbox.get(timeout=timeout)

    def wanted(self, step: Callable[[], None] | None = None) -> FragmentWanted:
        """Make steps, or what ``step`` does instead, until a fragment is requested."""
        while True:
            (step or self.step_within_bound)()
            try:
                message = self.next(0.05)
            except queue.Empty:
                continue
            if isinstance(message, FragmentWanted):
                return message
            assert message is not None
            self.obey(message)

    def obey(self, message: SyncerMessage) -> None:
        """Do what a learner does on a message."""
        match message:
            case FragmentWanted():
                # Another learner's push may have closed the round meanwhile: then this one is late, which is not an
                # error.
                with contextlib.suppress(RefusedError):
                    self.push(message)
            case FragmentReady(fragment, version, merged, progress):
                self.budget = progress.budget
                if merged:
                    self.merged.append((fragment, version))
                header = self.pull(fragment, version)
                self._session.send(Applied(self.incarnation, fragment, header.version))
            case EvaluationWanted(evaluation):
                self._session.send(EvaluationReport(self.incarnation, evaluation, self.evaluation_loss(), exact=True))
            case Finished():
                self.finished = message
            case Refused():
                self.refused = message

    def evaluation_loss(self) -> float:
        """The loss that it reports for the global model."""
        return 5.0 / max(1, self.steps)

    def train(self, enough: Callable[[Self], bool], *others: "ScriptedLearner") -> None:
        """Train until ``enough``, the job's end, or the session's.

        Those that trained before are among ``others``: a member that no longer says what it applied holds up the next
        rounds.
        """
        everyone: tuple[ScriptedLearner, ...] = (self, *others)
        while not enough(self) and self.finished is None:
            for learner in everyone:
                learner.turn()
            if self.ended:
                return

    def turn(self) -> None:
        """Report a step, and do what has been asked meanwhile."""
        with contextlib.suppress(UnavailableError):  # the session is over: its last messages can still be read
            self.step_within_bound()
        with contextlib.suppress(queue.Empty):
            while not self.ended:
                message = self.next(0.005)
                if message is None:
                    self.ended = True
                else:
                    self.obey(message)

    def leave(self) -> None:
        """Say goodbye."""
        self._session.send(Leave(self.incarnation, "the test has ended"))
        self._session.close()

    def hang_up(self) -> None:
        """Break the session off without a Leave."""
        self._session.close(grace_seconds=0.0)
        assert self.over.wait(WAIT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close(grace_seconds=0.0)
        self.client.close()

    def _listen(self, session: Any, inbox: "queue.Queue[SyncerMessage | None]") -> None:
        try:
            for message in session:
                inbox.put(message)
        except WireError as error:
            self.broken = error
        self.over.set()
        inbox.put(None)
