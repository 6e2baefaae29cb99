"""What a learner does before its first inner step and after every step; the steps are made by others.

After a step it swaps in merged fragments, copies out those that are requested, and evaluates. It waits only for the
initial model, and for the syncer at the staleness bound.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diloco.learner.activity import Activity, Kind
from diloco.learner.exchange.link import Position, Shared
from diloco.learner.exchange.orders import Ending, Membership, Wakeup
from diloco.learner.exchange.requests import OuterGradient
from diloco.learner.step_times import StepTimes
from diloco.learner.training.fragment_trainer import FragmentTrainer, LateResult, StepResult
from diloco.wire.messages import StepReport

if TYPE_CHECKING:
    from diloco.learner.exchange.holdings import MergedFragment
    from diloco.learner.training.capture import Capture

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""While it waits, the loop checks this often even without a notice."""
_LOGGED_PAUSE_SECONDS = 2.0
"""Shorter pauses are not logged: with a low staleness bound they are the rule."""
PROGRESS_SECONDS = 30.0


@dataclass(frozen=True)
class LoopSettings:
    """Settings of the inner loop."""

    staleness_bound_steps: int
    checkpoint_every_steps: int
    speed: float = 1.0
    on_cpu: bool = False
    """Whether the loop's thread computes the steps."""


@dataclass(frozen=True)
class LoopWiring:
    """What it shares with the exchange, and the callbacks that the inner loop uses."""

    shared: Shared
    wakeup: Wakeup
    membership: Callable[[], Membership | None]
    """The current admission; None: there is no session."""
    known_position: Callable[[], Position | None]
    checkpoint: Callable[[], object]
    """Takes a snapshot and has it written."""
    take_up: Callable[[], object] = lambda: None
    """Goes on with the learner's own checkpoint, if that is of the syncer's training. Called once, after the first
    Welcome and before the first step."""


class InnerLoop:
    """Owned by the main thread. Other threads may read ``news`` and ``paused``."""

    def __init__(
        self, trainer: FragmentTrainer, wiring: LoopWiring, settings: LoopSettings, activity: Activity
    ) -> None:
        self._trainer = trainer
        self._wiring = wiring
        self._shared = wiring.shared
        self._settings = settings
        self._activity = activity
        self._logged_at = time.monotonic()
        self._logged_tokens = trainer.tokens
        self._finished: tuple[StepResult, float] | None = None
        """The latest step and its duration, until it is reported."""
        self._times = StepTimes(settings.speed, on_cpu=settings.on_cpu)
        self._early: dict[int, Capture] = {}
        """Copied out during the latest step, by fragment, until they are staged."""
        self._swapped: list[tuple[MergedFragment, Membership | None]] = []
        """Swapped in and not yet told; with the admission of which the model is loaded now."""
        self._took_up = False
        self.news: StepReport | None = None
        """The latest step of this process."""
        self.paused = False

    def step_seconds(self) -> float:
        """Usual duration of a step at this speed, whatever one step was held up by; 0 before the first."""
        return self._times.usual_seconds

    def run(self, step: Callable[[float], StepResult | LateResult]) -> Ending:
        """Train until the end. ``step`` makes or begins an inner step, given the job's progress.

        Raises:
            TrainingDivergedError, DataError: from the trainer.
            BaseException: what a worker thread failed with.
        """
        ending = self.begin()
        while ending is None:
            made = step(self._shared.orders.progress)
            ending = self.after_step(made if isinstance(made, StepResult) else self._settled(made))
        return ending

    def begin(self) -> Ending | None:
        """Wait for the whole model, and until the first step may be made; None: it may.

        Raises:
            DataError, ModelError: from the trainer.
            BaseException: what a worker thread failed with.
        """
        ending = self._load()
        self._activity.switch_to(Kind.LOOKING)
        return ending or self._next_step()

    def _settled(self, late: LateResult) -> StepResult:
        """Do what can be done while the device makes a step, which costs no time then, and wait for its numbers."""
        self._swap_in(during_step=True)
        self._early = {fragment: self._trainer.capture(fragment) for fragment in self._to_stage()}
        return late()

    def after_step(self, result: StepResult) -> Ending | None:
        """Do all that is due after an inner step, and wait until the next may be made; None: it may.

        Time since the step before counts as training. Raises as ``begin`` does.
        """
        pause = self._times.made(result.seconds, result.steps, skipped=result.skipped)
        if pause > 0:
            self._sleep(pause)
        seconds = result.seconds + pause
        self._activity.switch_to(Kind.LOOKING)
        if result.skipped:
            self._early.clear()  # they count it
            self._activity.reclassify(seconds, Kind.TRAINING, Kind.SKIPPED)
            _log.warning("step skipped: loss %g, gradient norm %g", result.loss, result.grad_norm)
        else:
            self._finished = (result, seconds / result.steps)
            if self._trainer.steps % self._settings.checkpoint_every_steps < result.steps:
                with self._activity.at(Kind.CHECKPOINTING):
                    self._wiring.checkpoint()
            self._log_progress()
        return self._next_step()

    def _next_step(self) -> Ending | None:
        ending = self._until_next_step()
        self._times.begin()
        return ending

    def ending(self) -> Ending | None:
        """How the training is to end now; None: it goes on. Raises what a worker thread failed with."""
        return self._shared.orders.ending()

    def _until_next_step(self) -> Ending | None:
        self.between_steps()
        ending = self._shared.orders.ending() or self._pause_while_stale() or self._wait_for_data()
        if ending is None:
            self._activity.switch_to(Kind.TRAINING)
        return ending

    def between_steps(self) -> None:
        """Do the work between two steps, if there is any."""
        if why := self._shared.orders.take_start_over():
            self._start_over(why)
        self._swap_in()
        self.answer_waiting()
        self._stage()
        self._report()
        self._shared.outbox.post()
        self._evaluate()

    def _load(self) -> Ending | None:
        """Wait for the whole model, once per process. Later versions are swapped in while it trains."""
        began = time.monotonic()
        ending = self._receive_model()
        if ending is not None:
            return ending
        self._take_up()
        self._logged_tokens = self._trainer.tokens
        _log.info(
            "loaded the model in %.1f s; starting after step %d, data position %d",
            time.monotonic() - began,
            self._trainer.steps,
            self._trainer.data_position,
        )
        return None

    def _receive_model(self) -> Ending | None:
        """Wait until every fragment is held."""
        while not self._shared.holdings.complete:
            ending = self._shared.orders.ending()
            if ending is not None:
                return ending
            notices = self._wiring.wakeup.notices
            if self._wiring.membership() is not None:
                self._take_up()  # from the disk, while fragments arrive
            self._swap_in()
            self._shared.outbox.post()
            if not self._shared.holdings.complete:
                self._wiring.wakeup.wait(notices, _LOOK_SECONDS)
        return None

    def _take_up(self) -> None:
        if not self._took_up:
            self._took_up = True
            self._wiring.take_up()
        # Before a fragment is swapped in: it says after which step.
        known = self._wiring.known_position()
        if known is not None:
            if known.steps > self._trainer.steps and self._shared.feedback is not None:
                self._shared.feedback.forget()
            self._trainer.catch_up(known.steps, known.data_position)

    def _start_over(self, why: str) -> None:
        """Load the global model and drop everything that may have diverged; make no step before that."""
        _log.warning("starting over from the global model: %s", why)
        self._early.clear()
        self._trainer.start_over()
        if self._shared.feedback is not None:
            self._shared.feedback.forget()
        with self._activity.at(Kind.LOADING):
            ending = self._receive_model()
        if ending is None:  # the checkpoint before may hold what diverged
            with self._activity.at(Kind.CHECKPOINTING):
                self._wiring.checkpoint()

    def _swap_in(self, *, during_step: bool = False) -> None:
        """Swap in what has arrived. During a step nothing is told, as it is not known after which step that was."""
        shared = self._shared
        if not during_step:
            self._tell_of_swaps()
        for arrival in shared.holdings.take():
            with self._activity.at(Kind.TRAINING if during_step else Kind.COPYING):
                self._trainer.apply(arrival.fragment, arrival.version, arrival.values)
            shared.requests.received(arrival.fragment)
            self._early.pop(arrival.fragment, None)
            self._swapped.append((arrival, shared.holdings.received(arrival)))
            if not during_step:
                self._tell_of_swaps()

    def _tell_of_swaps(self) -> None:
        swapped, self._swapped = self._swapped, []
        for arrival, ready in swapped:
            now = self._wiring.membership()
            if now is not None and now.epoch == arrival.epoch:
                self._shared.outbox.applied(now, arrival.fragment, arrival.version, self._trainer.steps)
            if ready is not None:
                self._shared.outbox.ready(ready)

    def answer_waiting(self) -> None:
        """Copy out requested fragments. Most requests never wait: `Link` answers them from a staged copy."""
        shared = self._shared
        for request in shared.requests.take():
            if request.membership != self._wiring.membership():
                continue
            if self._trainer.fragment_steps(request.fragment) == 0:
                shared.outbox.declined(request.membership, request.fragment, request.version, request.attempt)
                continue
            with self._activity.at(Kind.COPYING):
                capture = self._trainer.capture(request.fragment)
            shared.requests.sent(request)
            shared.outbox.answer(OuterGradient(request, capture))

    def _stage(self) -> None:
        """Copy out the fragments that will be requested next. This precedes the step report, which makes rounds due."""
        early, self._early = self._early, {}
        if self._finished is not None and (expected := self._to_stage()):
            with self._activity.at(Kind.COPYING):
                captures = [early.get(fragment) or self._trainer.capture(fragment) for fragment in expected]
                self._shared.requests.stage(captures)

    def _to_stage(self) -> list[int]:
        return [p for p in self._shared.requests.expected() if self._trainer.fragment_steps(p) > 0]

    def _evaluate(self) -> None:
        shared = self._shared
        order = shared.orders.take_evaluation()
        if order is None or order.membership != self._wiring.membership():
            return
        held, wanted = shared.holdings.versions(), order.wanted.versions
        if order.wanted.final and any(have is None or have < one for have, one in zip(held, wanted, strict=False)):
            shared.orders.put_back(order)  # a version has not arrived yet
            return
        with self._activity.at(Kind.EVALUATING):
            began = time.monotonic()
            loss = self._trainer.evaluate()
        metrics = "".join(f", {name} {value:.4g}" for name, value in self._trainer.metrics.items())
        _log.info("evaluated the global model in %.1f s: loss %.4f%s", time.monotonic() - began, loss, metrics)
        shared.outbox.evaluated(order.membership, order.wanted.evaluation, loss, exact=held == wanted)
        shared.outbox.post()

    def _pause_while_stale(self) -> Ending | None:
        """At the staleness bound, wait until the most stale fragment has arrived."""
        if self._trainer.staleness < self._settings.staleness_bound_steps:
            return None
        ending = None
        logged = False
        began = time.monotonic()
        self.paused = True
        with self._activity.at(Kind.PAUSED):
            while ending is None and self._trainer.staleness >= self._settings.staleness_bound_steps:
                notices = self._wiring.wakeup.notices
                self.between_steps()
                if self._trainer.staleness >= self._settings.staleness_bound_steps:
                    self._wiring.wakeup.wait(notices, _LOOK_SECONDS)
                ending = self._shared.orders.ending()
                if not logged and time.monotonic() - began >= _LOGGED_PAUSE_SECONDS:
                    logged = True
                    _log.warning(
                        "paused: %d steps without receiving a fragment, sync.maxStalenessSteps is %d",
                        self._trainer.staleness,
                        self._settings.staleness_bound_steps,
                    )
        self.paused = False
        if logged and ending is None:
            _log.info("resumed after a pause of %.1f s", time.monotonic() - began)
        return ending

    def _wait_for_data(self) -> Ending | None:
        """Wait until the next batch has been dealt: as a rule it was, long ago."""
        ending, logged, began = None, False, time.monotonic()
        while ending is None and not self._has_data():
            if not logged and time.monotonic() - began >= _LOGGED_PAUSE_SECONDS:
                logged = True
                _log.warning("waiting: the syncer has dealt no sequences to train on")
            with self._activity.at(Kind.PAUSED):
                notices = self._wiring.wakeup.notices
                self.between_steps()
                if not self._trainer.has_data():
                    self._wiring.wakeup.wait(notices, _LOOK_SECONDS)
            ending = self._shared.orders.ending()
        return ending

    def _has_data(self) -> bool:
        if self._trainer.jump():
            for fragment in range(len(self._trainer.versions)):
                self._shared.requests.received(fragment)
        return self._trainer.has_data()

    def _sleep(self, seconds: float) -> None:
        """Sleep, unless the process is asked to stop."""
        until = time.monotonic() + seconds
        while not self._shared.orders.stopping and (rest := until - time.monotonic()) > 0:
            self._wiring.wakeup.wait(self._wiring.wakeup.notices, rest)

    def _report(self) -> None:
        """Report the latest step, with the time spent between steps since the one before."""
        if self._finished is None:
            return
        (result, step_seconds), self._finished = self._finished, None
        self.news = StepReport(
            incarnation=0,
            step=self._trainer.steps,
            tokens=self._trainer.tokens,
            step_seconds=step_seconds,
            loss=result.loss,
            data_position=self._trainer.data_position,
            spent=self._activity.spent(),
            gradient_norm=result.grad_norm,
            learning_rate=result.learning_rate,
        )
        self._shared.outbox.step(self.news)

    def _log_progress(self) -> None:
        """Log a line on progress from time to time."""
        now = time.monotonic()
        if now - self._logged_at < PROGRESS_SECONDS or self.news is None:
            return
        spent = self._activity.spent()
        rate = (self._trainer.tokens - self._logged_tokens) / (now - self._logged_at)
        self._logged_at, self._logged_tokens = now, self._trainer.tokens
        _log.info(
            "step %d, loss %.4f, %.0f tokens/s, job %.1f %%, blocked %.2f %%, evaluations and snapshots %.2f %%",
            self.news.step,
            self.news.loss if math.isfinite(self.news.loss) else math.nan,
            rate,
            100 * self._shared.orders.progress,
            100 * spent.fraction(spent.blocked_seconds),
            100 * spent.fraction(spent.other_work_seconds),
        )
