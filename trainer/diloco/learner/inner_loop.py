"""The loop that trains: a step, a look into the mailboxes, a step.

It is the only user of the trainer. Between two steps it swaps in what has come, copies out what is asked for,
evaluates, and goes on; it waits for nothing but the initial model, and for the syncer at the staleness bound. It must
not know sockets, codecs or files.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from diloco.learner.activity import Activity, Kind
from diloco.learner.link import Mailboxes, Position
from diloco.learner.mailboxes.holdings import Membership
from diloco.learner.mailboxes.orders import Ending, EvaluationOrder
from diloco.learner.mailboxes.outbox import StepNews
from diloco.learner.mailboxes.push_queue import OuterGradient
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.learner.training.trainer import InnerTrainer, StepResult

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""A loop that waits looks this often even without a notice."""
_MENTION_SECONDS = 2.0
"""A shorter pause is not worth a line in the log: with a low staleness bound short ones are the rule."""
PROGRESS_SECONDS = 30.0


@dataclass(frozen=True)
class LoopSettings:
    """How it runs."""

    staleness_bound_steps: int
    checkpoint_every_steps: int
    speed: float = 1.0


@dataclass(frozen=True)
class LoopWiring:
    """Who it talks to."""

    mailboxes: Mailboxes
    wakeup: Wakeup
    membership: Callable[[], Membership | None]
    """The admission that lasts."""
    known_position: Callable[[], Position | None]
    """How far the syncer knows this learner to be."""
    checkpoint: Callable[[], object]
    """Take a snapshot and have it written."""


class InnerLoop:
    """Owned by the main thread. Other threads may read ``news``, ``position`` and ``paused``."""

    def __init__(self, trainer: InnerTrainer, wiring: LoopWiring, settings: LoopSettings, activity: Activity) -> None:
        self._trainer = trainer
        self._wiring = wiring
        self._boxes = wiring.mailboxes
        self._settings = settings
        self._activity = activity
        self._reported_blocked_seconds = 0.0
        self._mentioned_at = time.monotonic()
        self._mentioned_tokens = trainer.tokens
        self._finished: tuple[StepResult, float] | None = None
        """The step that is not reported yet, and its duration."""
        self.news: StepNews | None = None
        """The latest step of this process."""
        self.paused = False

    def position(self) -> Position:
        """How far the learner is. Two plain reads: any thread may ask."""
        return Position(self._trainer.steps, self._trainer.data_position)

    def step_seconds(self) -> float:
        """Duration of the latest step; 0 before the first."""
        return 0.0 if self.news is None else self.news.step_seconds

    def run(self) -> Ending:
        """Train until the end.

        Raises:
            TrainingDivergedError, DataError: from the trainer.
            BaseException: what a worker thread failed with.
        """
        ending = self._load()
        self._activity.turn_to(Kind.LOOKING)
        while ending is None:
            self.look()
            ending = self._boxes.orders.ending() or self._pause_while_stale()
            if ending is None:
                self._step()
        return ending

    def look(self) -> None:
        """What is done between two steps, when there is something to do."""
        self._swap_in()
        self.answer()
        self._stage()
        self._report()
        self._boxes.control.post()
        self._evaluate()

    def _load(self) -> Ending | None:
        """Wait for the whole model, once in the life of the process. Later ones are loaded while it trains."""
        began = time.monotonic()
        while not self._boxes.holdings.complete:
            ending = self._boxes.orders.ending()
            if ending is not None:
                return ending
            notices = self._wiring.wakeup.notices
            self._swap_in()
            self._boxes.control.post()
            if not self._boxes.holdings.complete:
                self._wiring.wakeup.wait(notices, _LOOK_SECONDS)
        known = self._wiring.known_position()
        if known is not None:
            if known.steps > self._trainer.steps and self._boxes.feedback is not None:
                self._boxes.feedback.forget()
            self._trainer.catch_up(known.steps, known.data_position)
        _log.info(
            "loaded the model in %.1f s; starting after step %d, data position %d",
            time.monotonic() - began,
            self._trainer.steps,
            self._trainer.data_position,
        )
        return None

    def _swap_in(self) -> None:
        boxes = self._boxes
        for arrival in boxes.pull_queue.take():
            epoch, fragment, version = arrival.membership.epoch, arrival.fragment, arrival.version
            if not boxes.holdings.is_news(epoch, fragment, version):
                continue
            with self._activity.at(Kind.COPYING):
                self._trainer.apply(fragment, version, arrival.values)
            boxes.requests.received(fragment)
            now = self._wiring.membership()
            if now is not None and now.epoch == epoch:
                boxes.control.applied(now, fragment, version, self._trainer.steps)
            ready = boxes.holdings.received(epoch, fragment, version, arrival.values)
            if ready is not None:
                boxes.control.ready(ready)

    def answer(self) -> None:
        """Copy out what is asked for."""
        boxes = self._boxes
        for request in boxes.requests.take():
            if request.membership != self._wiring.membership():
                continue
            if self._trainer.fragment_steps(request.fragment) == 0:
                boxes.control.declined(request.membership, request.fragment, request.version, request.attempt)
                continue
            with self._activity.at(Kind.COPYING):
                capture = self._trainer.capture(request.fragment)
            boxes.requests.sent(request)
            boxes.push_queue.offer(OuterGradient(request, capture))

    def _stage(self) -> None:
        """Copy out what will be asked for next. Before the step is reported: the report is what makes it due."""
        expected = [p for p in self._boxes.requests.expected() if self._trainer.fragment_steps(p) > 0]
        if self._finished is not None and expected:
            with self._activity.at(Kind.COPYING):
                self._boxes.requests.stage([self._trainer.capture(fragment) for fragment in expected])

    def _evaluate(self) -> None:
        boxes = self._boxes
        order = boxes.orders.take_evaluation()
        if order is None or order.membership != self._wiring.membership():
            return
        if order.wanted.final and self._is_missing(order):
            boxes.orders.put_back(order)
            return
        exact = boxes.holdings.versions() == order.wanted.versions
        with self._activity.at(Kind.EVALUATING):
            began = time.monotonic()
            loss = self._trainer.evaluate()
        _log.info("evaluated the global model in %.1f s: loss %.4f", time.monotonic() - began, loss)
        boxes.control.evaluated(order.membership, order.wanted.evaluation, loss, exact=exact)
        boxes.control.post()

    def _is_missing(self, order: EvaluationOrder) -> bool:
        """Whether a version that the evaluation must have is still on its way."""
        held = self._boxes.holdings.versions()
        return any(have is None or have < wanted for have, wanted in zip(held, order.wanted.versions, strict=False))

    def _pause_while_stale(self) -> Ending | None:
        """At the staleness bound, stand still until the fragment that waited longest is here."""
        if self._trainer.staleness < self._settings.staleness_bound_steps:
            return None
        ending = None
        mentioned = False
        began = time.monotonic()
        self.paused = True
        with self._activity.at(Kind.PAUSED):
            while ending is None and self._trainer.staleness >= self._settings.staleness_bound_steps:
                notices = self._wiring.wakeup.notices
                self.look()
                if self._trainer.staleness >= self._settings.staleness_bound_steps:
                    self._wiring.wakeup.wait(notices, _LOOK_SECONDS)
                ending = self._boxes.orders.ending()
                if not mentioned and time.monotonic() - began >= _MENTION_SECONDS:
                    mentioned = True
                    _log.warning(
                        "paused: %d steps without receiving a fragment, sync.maxStalenessSteps is %d",
                        self._trainer.staleness,
                        self._settings.staleness_bound_steps,
                    )
        self.paused = False
        if mentioned and ending is None:
            _log.info("resumed after a pause of %.1f s", time.monotonic() - began)
        return ending

    def _step(self) -> None:
        with self._activity.at(Kind.TRAINING):
            result = self._trainer.step(self._boxes.orders.progress)
            slept = sleep_for_speed(result.seconds, self._settings.speed, self._sleep)
        if result.skipped:
            self._activity.recount(result.seconds + slept, Kind.TRAINING, Kind.SKIPPED)
            _log.warning("step skipped: loss %g, gradient norm %g", result.loss, result.grad_norm)
            return
        self._finished = (result, result.seconds + slept)
        if self._trainer.steps % self._settings.checkpoint_every_steps == 0:
            with self._activity.at(Kind.CHECKPOINTING):
                self._wiring.checkpoint()
        self._mention()

    def _sleep(self, seconds: float) -> None:
        """Sleep, but not when the process is asked to stop."""
        until = time.monotonic() + seconds
        while not self._boxes.orders.stopping and (rest := until - time.monotonic()) > 0:
            self._wiring.wakeup.wait(self._wiring.wakeup.notices, rest)

    def _report(self) -> None:
        """Report the step that was made, with the time that it cost to look since the one before."""
        if self._finished is None:
            return
        (result, step_seconds), self._finished = self._finished, None
        spent = self._activity.spent()
        blocked_seconds = spent.blocked_seconds
        self.news = StepNews(
            step=self._trainer.steps,
            tokens=self._trainer.tokens,
            step_seconds=step_seconds,
            blocked_seconds=max(0.0, blocked_seconds - self._reported_blocked_seconds),
            loss=result.loss,
            data_position=self._trainer.data_position,
            spent=spent,
        )
        self._reported_blocked_seconds = blocked_seconds
        self._boxes.control.step(self.news)

    def _mention(self) -> None:
        """A line on progress every so often."""
        now = time.monotonic()
        if now - self._mentioned_at < PROGRESS_SECONDS or self.news is None:
            return
        spent = self._activity.spent()
        rate = (self._trainer.tokens - self._mentioned_tokens) / (now - self._mentioned_at)
        self._mentioned_at, self._mentioned_tokens = now, self._trainer.tokens
        _log.info(
            "step %d, loss %.4f, %.0f tokens/s, job %.1f %%, blocked %.2f %%, evaluations and snapshots %.2f %%",
            self.news.step,
            self.news.loss if math.isfinite(self.news.loss) else math.nan,
            rate,
            100 * self._boxes.orders.progress,
            100 * spent.fraction(spent.blocked_seconds),
            100 * spent.fraction(spent.other_work_seconds),
        )


def sleep_for_speed(step_seconds: float, speed: float, sleep: Callable[[float], None]) -> float:
    """Sleep so that a step of ``step_seconds`` takes ``step_seconds / speed``; returns the seconds slept.

    Slower hardware is acted out, so that one machine can stand for pools of different speed.
    """
    rest = step_seconds / speed - step_seconds
    if rest > 0:
        sleep(rest)
    return rest
