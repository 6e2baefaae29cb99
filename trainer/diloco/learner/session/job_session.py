"""The part of a learner that a loop of the user's own calls."""

import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from diloco.learner.data.own_code import OwnCode
from diloco.learner.found_batch import FoundBatch
from diloco.learner.job_training import Training
from diloco.learner.learner import Learner
from diloco.learner.mailboxes.orders import Ending
from diloco.learner.options import LearnerOptions
from diloco.learner.session.trainer import SessionTrainer
from diloco.learner.training.fragment_trainer import StepResult


class SessionError(ValueError):
    """A session cannot be had in this process; the text says what to do."""


class Session:
    """A loop's part in its job, made by ``diloco.session``: entered once, in the thread that trains.

    Create iterators of data and threads inside of the ``with``: on entering, the model's values, the optimizer's state
    and what was saved are those that this learner goes on from.
    """

    def __init__(
        self, options: LearnerOptions, trainer: SessionTrainer, code: OwnCode, begin: Callable[[Training], Learner]
    ) -> None:
        """``begin`` makes the process's learner."""
        self.learner = options.learner
        """This learner's id, ``region/pool/index``."""
        text = f"{options.job.spec.training.seed} {self.learner}"
        self.seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1
        """A number of 31 bits, another for each learner and the same after a restart: choose data by it."""
        self.device: torch.device = trainer.device
        """The model's."""
        self.saved = trainer.saved
        """By name, what is saved in this learner's checkpoints, and restored on entering: fill it before that."""
        self._trainer, self._code, self._begin = trainer, code, begin
        self.began: Learner | None = None
        self.ending: Ending | None = None
        """How the training has ended; None: it has not."""
        self.stepped = False
        """Whether this process has made a step."""
        self.failure: BaseException | None = None
        """What a call has raised, even if the loop has caught it."""
        self._thread: int | None = None
        self._since = 0.0

    @property
    def steps(self) -> int:
        """Steps of this learner so far, those before a restart included."""
        return self._trainer.steps

    def __enter__(self) -> Self:
        """Join the job, and wait for the model."""
        with self._noting_failures():
            if self.began is not None:
                raise self._code.mistake("its session is entered twice; enter it once")
            self._thread = threading.get_ident()
            self.began = learner = self._begin(Training(self._trainer, None, FoundBatch(self._trainer.batch_size), 0.0))
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

        It counts a step of ``batchSize`` x ``sequenceLength`` tokens, and may change the model's values, evaluate, save
        a checkpoint, or wait. ``loss``: the step's mean. ``gradient_norm``: before clipping. Both are for people.
        """
        learner = self.began
        if self.ending is not None:
            return False
        with self._noting_failures():
            if learner is None or self._thread != threading.get_ident():
                text = "step() is called outside of the session, or in another thread than entered it"
                raise self._code.mistake(text)
            mean, norm = self._number("loss", loss), self._number("gradient_norm", gradient_norm)
            self.stepped = True
            result = StepResult(
                loss=mean,
                tokens=self._trainer.count_step(),
                seconds=time.monotonic() - self._since,
                grad_norm=norm,
                learning_rate=self._trainer.learning_rate,
                skipped=False,
            )
            return self._continue_or_finish(learner, learner.loop.after_step(result))

    def end(self, ending: Ending) -> None:
        """End the training so, unless it has ended."""
        if self.ending is None and self.began is not None:
            self._continue_or_finish(self.began, ending)

    def _number(self, name: str, value: float | Tensor | None) -> float:
        number = math.nan if value is None else self._trainer.number(f"step(): {name} is", value)
        return number if math.isfinite(number) else math.nan

    def _continue_or_finish(self, learner: Learner, ending: Ending | None) -> bool:
        self.ending = ending
        if ending is not None:
            learner.finish(ending)
        self._since = time.monotonic()
        return ending is None

    @contextmanager
    def _noting_failures(self) -> Iterator[None]:
        if self.failure is not None:
            raise self.failure
        try:
            yield
        except BaseException as error:
            self.failure = error
            raise
