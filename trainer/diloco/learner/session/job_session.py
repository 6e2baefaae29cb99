"""The part of a learner that a loop of the user's own calls."""

import hashlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Protocol, Self

import torch
from torch import Tensor

from diloco.learner.data.own_code import OwnCode
from diloco.learner.exchange.orders import Ending
from diloco.learner.session.loop_state import LearnerOfJob, LoopState, Stateful
from diloco.learner.training.fragment_trainer import StepResult

_log = logging.getLogger(__name__)

_CALLS_WITHOUT_STEP: Final = 1000
"""After so many, the optimizer is not the one that the loop uses (ours)."""
_CALLS_AFTER_END: Final = 1000
"""A framework may make some more before it ends; a loop that ignores what ``step()`` returns has no end (ours)."""


class SessionOverError(BaseException):
    """Ends a loop that goes on after its session has ended or failed; no loop catches it by ``except Exception``."""


class SessionError(ValueError):
    """A session cannot be had in this process; the text says what to do."""


class Steps(Protocol):
    """What a session calls of an inner loop: see `InnerLoop`."""

    def begin(self) -> Ending | None:
        """Wait until the first step may be made."""

    def after_step(self, result: StepResult) -> Ending | None:
        """Do all that is due after a step."""

    def ending(self) -> Ending | None:
        """How the training is to end now."""


class Begun(Protocol):
    """What a session calls of a learner, or what stands for one: see `Learner`."""

    @property
    def loop(self) -> Steps:
        """What is done between its steps."""

    def start(self) -> None:
        """Join."""

    def finish(self, ending: Ending) -> None:
        """Shut down."""


Begin = Callable[[], Begun]
"""Makes the process's learner."""


class Session:
    """A loop's part in its job, made by ``diloco.session``: entered once, in the thread that trains.

    Create iterators of data and threads inside of the ``with``: on entering, the model's values, the optimizer's state
    and what was saved are those that this learner goes on from.
    """

    def __init__(self, options: LearnerOfJob, trainer: LoopState, code: OwnCode, begin: Begin) -> None:
        self.learner = options.learner
        """This learner's id, ``region/pool/index``."""
        text = f"{options.job.spec.training.seed} {self.learner}"
        self.seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1
        """A number of 31 bits, another for each learner and the same after a restart: choose data by it."""
        self.device: torch.device = trainer.device
        """The model's."""
        self._trainer, self._code, self._begin = trainer, code, begin
        self.began: Begun | None = None
        self.ending: Ending | None = None
        """How the training has ended; None: it has not."""
        self.stepped = False
        """Whether this process has made a step."""
        self.failure: BaseException | None = None
        """What a call has raised, even if the loop has caught it."""
        self._thread: int | None = None
        self._since = 0.0
        self._idle_calls = self._late_calls = 0
        self._told: set[bool] = set()

    @property
    def saved(self) -> dict[str, Stateful | torch.Generator]:
        """By name, what is saved in this learner's checkpoints, and restored on entering: fill it before that."""
        return self._trainer.saved

    @saved.setter
    def saved(self, saved: dict[str, Stateful | torch.Generator]) -> None:
        self._trainer.saved = saved

    @property
    def steps(self) -> int:
        """Steps of this learner so far, those before a restart included."""
        return self._trainer.steps

    def __enter__(self) -> Self:
        """Join the job, and wait for the model."""
        with self._noting_failures():
            if self.began is not None:
                raise self._code.mistake("its session is entered twice; enter it once")
            self._trainer.check_saved()
            self._thread = threading.get_ident()
            self.began = learner = self._begin()
            learner.start()
            self._continue_or_finish(learner, learner.loop.begin())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Allow no step after this."""
        self._thread = None

    def step(self, loss: float | Tensor | None = None, gradient_norm: float | Tensor | None = None) -> bool:
        """Call after each step of the optimizer; whether to go on. False: the job is over, or this process is to stop.

        It counts the steps that the optimizer has made since the last call, each of ``batchSize`` x ``sequenceLength``
        tokens. Then it may change the model's values, evaluate, save a checkpoint, or wait. Without such a step, as
        between micro-batches, it does nothing. ``loss``: the step's mean. ``gradient_norm``: before clipping. Both are
        for people.
        """
        learner = self.began
        if self.ending is not None:
            self._late_calls += 1
            if self._late_calls > _CALLS_AFTER_END:
                raise SessionOverError("the loop goes on although step() has returned False")
            return False
        with self._noting_failures():
            if learner is None or self._thread != threading.get_ident():
                text = "step() is called outside of the session, or in another thread than entered it"
                raise self._code.mistake(text)
            mean, norm = self._number("loss", loss), self._number("gradient_norm", gradient_norm)
            steps, tokens = self._trainer.count_steps()
            if steps != 1:
                self._tell_of(steps)
            if not steps:
                ending = learner.loop.ending()
                return ending is None or self._continue_or_finish(learner, ending)
            if not self.stepped:
                self._trainer.check_optimizer()
            self.stepped = True
            result = StepResult(
                loss=mean,
                tokens=tokens,
                seconds=time.monotonic() - self._since,
                grad_norm=norm,
                learning_rate=self._trainer.learning_rate,
                skipped=False,
                steps=steps,
            )
            return self._continue_or_finish(learner, learner.loop.after_step(result))

    def end(self, ending: Ending) -> None:
        """End the training so, unless it has ended."""
        if self.ending is None and self.began is not None:
            self._continue_or_finish(self.began, ending)

    def _tell_of(self, steps: int) -> None:
        """Say once that calls and steps of the optimizer differ."""
        self._idle_calls += not steps
        if self._idle_calls >= _CALLS_WITHOUT_STEP and not self.stepped:
            raise self._code.mistake(
                f"step() was called {self._idle_calls} times, and the optimizer has made no step; give diloco.session "
                "the optimizer that the loop uses"
            )
        text = "step() was called without a step of the optimizer since the last call; such calls count nothing"
        if steps:
            text = f"the optimizer made {steps} steps before step() was called; all count, but call it after each"
        if bool(steps) not in self._told:
            self._told.add(bool(steps))
            _log.warning("%s: %s", self._code.field, text)

    def _number(self, name: str, value: float | Tensor | None) -> float:
        number = math.nan if value is None else self._trainer.number(f"step(): {name} is", value)
        return number if math.isfinite(number) else math.nan

    def _continue_or_finish(self, learner: Begun, ending: Ending | None) -> bool:
        self.ending = ending
        if ending is not None:
            learner.finish(ending)
        self._since = time.monotonic()
        return ending is None

    @contextmanager
    def _noting_failures(self) -> Iterator[None]:
        if self.failure is not None:
            raise SessionOverError("the loop goes on although its session has failed") from self.failure
        try:
            yield
        except BaseException as error:
            self.failure = error
            raise
