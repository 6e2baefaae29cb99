"""A learner's process in virtual time: inner steps, and what happens between them.

It behaves as the real learner does: fragments are captured and swapped in between two steps, pushes and pulls run
beside the steps, and a learner without messages trains on up to the staleness bound. Whether training is computed or
only counted is up to its trainer.
"""

import copy
import random
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from diloco.core.engine.actions import Admit, AskFragment, Evaluate
from diloco.core.engine.events import (
    Evaluated,
    FragmentApplied,
    FragmentArrived,
    FragmentDeclined,
    LearnerJoined,
    LearnerReady,
    StepReported,
)
from diloco.core.engine.rounds.schedule import Schedule
from diloco.learner.activity import Activity, Kind
from diloco.learner.exchange.holdings import Holdings, MergedFragment
from diloco.learner.exchange.orders import Membership, Wakeup
from diloco.learner.exchange.requests import GradientRequest, Requests
from diloco.learner.exchange.residuals import Residual
from diloco.simulate.network.session import Environment, Identity, SessionCallbacks, SimulatedSession
from diloco.simulate.syncer import FragmentNews, Order, Pulled
from diloco.simulate.training.work import Encoder

if TYPE_CHECKING:
    from diloco.learner.training.capture import Capture
    from diloco.learner.training.fragment_trainer import StepResult, TrainerState
    from diloco.simulate.training.work import Trainer


@dataclass
class Disk:
    """What survives a learner's process: its newest checkpoint."""

    trainer: "TrainerState | None" = None
    residuals: dict[int, Residual] = field(default_factory=dict)


EPOCH = "1"
"""Syncer epoch: the simulated syncer starts only once."""


class SimulatedLearner:
    """One process, from its start to its end."""

    def __init__(
        self, environment: Environment, identity: Identity, trainer: "Trainer", encoder: Encoder, disk: Disk
    ) -> None:
        sync = environment.job.sync
        self._environment = environment
        self._identity = identity
        self._id = identity.learner
        self._durations = random.Random(f"{environment.seed}/{identity.instance}")  # noqa: S311 - no secret
        self._encoder = encoder
        self._staleness_bound = sync.staleness_bound_steps
        self._trainer = trainer
        self._disk = disk
        schedule = Schedule(len(trainer.versions), sync.interval, sync.least_overlap)
        wakeup = Wakeup()  # nothing waits for it
        self._requests = Requests(wakeup, schedule.fragments, schedule.in_flight(schedule.overlap))
        self._holdings = Holdings(wakeup, schedule.fragments)
        self._evaluations: list[Evaluate] = []
        """To be made between two steps."""
        callbacks = SessionCallbacks(self._make_join, self._handle_order, self._over, self._received)
        self.session = SimulatedSession(environment, identity, callbacks)
        self._membership = Membership(EPOCH, 0)
        self._posted: dict[int, int] = {}
        """Fragment -> version whose pull waits at the syncer."""
        self._loaded = False
        """It has received the whole model once, and trains."""
        self._progress = 0.0
        self._in_step = False
        self._paused_until = 0.0
        self._step_delay_seconds = 0.0
        """Pauses during the step under way."""
        self._finished: tuple[StepResult, float] | None = None
        """The latest step and its duration in seconds, until its report is made."""
        self._unsent: StepReported | None = None
        """The latest report, while there is no admission to send it under."""
        self._activity = Activity(lambda: environment.clock.now)
        if disk.trainer is not None:
            trainer.load_state(copy.deepcopy(disk.trainer))

    def pause(self, seconds: float) -> None:
        """Compute nothing for this time, the step under way included. The session lasts."""
        clock = self._environment.clock
        self._paused_until = max(self._paused_until, clock.now + seconds)
        if self._in_step:
            self._step_delay_seconds += seconds
        before = self._activity.switch_to(Kind.LOADING)

        def resume() -> None:
            if clock.now >= self._paused_until:
                self._activity.switch_to(before)
                self._wake()

        clock.after(seconds, resume)

    def leave(self) -> None:
        """End in order: write a checkpoint, and tell the syncer."""
        if self.session.alive and self._loaded:
            self._save()
        self.session.leave()

    def _make_join(self) -> LearnerJoined:
        trainer = self._trainer
        _, versions = self._holdings.to_join_with()
        return LearnerJoined(self._id, self._identity.instance, versions, trainer.steps, trainer.data_position)

    def _over(self) -> None:
        self._posted.clear()
        self._requests.session_over()
        self._evaluations.clear()

    def _handle_order(self, order: Order, progress: float) -> None:
        self._progress = max(self._progress, progress)
        match order:
            case Admit():
                self._admitted(order)
            case FragmentNews():
                self._news(order)
            case AskFragment():
                self._asked(order)
            case Evaluate():
                self._evaluations.append(order)
                self._wake()

    def _admitted(self, order: Admit) -> None:
        self._membership = Membership(EPOCH, order.incarnation)
        self._encoder.session_begins(order.versions, order.counted_in)
        if not self._loaded:
            self._trainer.catch_up(order.steps, order.data_position)
        if order.reset:
            self._trainer.start_over()
            self._encoder.start_over()
            self._loaded = False
        ready = self._holdings.admitted(self._membership, order.load)
        for fragment, version in enumerate(order.versions):
            # Include fragments that are only a little behind: their notices went to the previous session.
            if self._holdings.lacks(EPOCH, fragment, version):
                self.session.pull(fragment, self._held(fragment))
        if ready:
            self.session.send(LearnerReady(self._id, self.session.incarnation))
        if self._unsent is not None:
            self.session.send(replace(self._unsent, incarnation=self.session.incarnation))
            self._unsent = None
        self._wake()

    def _asked(self, order: AskFragment) -> None:
        request = GradientRequest(self._membership, order.fragment, order.version, order.attempt)
        capture = self._requests.put(request)
        if capture is None:
            self._wake()
        else:
            self._push(request, capture)

    def _news(self, news: FragmentNews) -> None:
        self._merged(news.fragment, news.version - 1)
        if not news.merged:
            self._requests.not_merged(news.fragment, news.version)
        self._encoder.outcome(news.fragment, news.version, merged=news.merged)
        self.session.round_over(news.fragment)
        if self._posted.pop(news.fragment, None) != news.version:
            self.session.pull(news.fragment, self._held(news.fragment))

    def _held(self, fragment: int) -> int | None:
        """The version that it tells the syncer it holds, so that an update can be added to it."""
        return self._holdings.versions()[fragment]

    def _merged(self, fragment: int, version: int) -> None:
        """Note what its posted pull for this version or an earlier one means: its outer gradient is in that version.

        Otherwise news had come, and ended the wait for it.
        """
        posted = self._posted.get(fragment)
        if posted is not None and posted <= version:
            del self._posted[fragment]
            self._encoder.outcome(fragment, posted, merged=True)
            self.session.round_over(fragment)

    def _received(self, fragment: int, pulled: Pulled) -> None:
        self._progress = max(self._progress, pulled.progress)
        self._merged(fragment, pulled.version)
        self._holdings.arrived(MergedFragment(EPOCH, fragment, pulled.version, pulled.values))
        self._wake()

    def _wake(self) -> None:
        if not self._in_step:
            self._between_steps()

    def _between_steps(self) -> None:
        if not self.session.alive or self._environment.clock.now < self._paused_until:
            return
        self._swap_in()
        for request in self._requests.take():
            self._answer(request)
        self._report()
        self._evaluate()
        if not self._loaded:
            return
        if self._trainer.staleness >= self._staleness_bound:
            self._activity.switch_to(Kind.PAUSED)
            return
        self._in_step = True
        self._activity.switch_to(Kind.TRAINING)
        profile = self._identity.profile
        # At least a tenth: a normal distribution has no lower bound.
        seconds = profile.step_seconds * max(0.1, self._durations.gauss(1.0, profile.jitter))
        self._environment.clock.after(seconds, partial(self._step_done, seconds))

    def _step_done(self, seconds: float) -> None:
        if self._step_delay_seconds:
            delay, self._step_delay_seconds = self._step_delay_seconds, 0.0
            self._environment.clock.after(delay, partial(self._step_done, seconds))
            return
        self._in_step = False
        if not self.session.alive:
            return
        trainer = self._trainer
        self._activity.switch_to(Kind.LOOKING)
        if between := self._identity.profile.between_steps:
            self._activity.reclassify(between * seconds, Kind.TRAINING, Kind.LOOKING)
            seconds *= 1 - between
        result = trainer.step(self._progress)
        if result.skipped:
            self._activity.reclassify(seconds, Kind.TRAINING, Kind.SKIPPED)
        else:
            self._finished = (result, seconds)
            if trainer.steps % self._environment.job.training.checkpoint_every_steps == 0:
                self._save()
        self._between_steps()

    def _save(self) -> None:
        self._disk.trainer = self._trainer.state()
        self._disk.residuals = dict(self._encoder.residuals())

    def _report(self) -> None:
        """Stage what will be requested next, then report the step, which makes the request due."""
        if self._finished is None:
            return
        trainer, (result, seconds) = self._trainer, self._finished
        self._finished = None
        expected = [fragment for fragment in self._requests.expected() if trainer.fragment_steps(fragment) > 0]
        self._requests.stage([trainer.capture(fragment) for fragment in expected])
        report = StepReported(
            self._id,
            self.session.incarnation,
            trainer.steps,
            trainer.tokens,
            seconds,
            result.loss,
            trainer.data_position,
            self._activity.spent(),
        )
        if self.session.admitted:
            self.session.send(report)
        else:
            self._unsent = report

    def _answer(self, request: GradientRequest) -> None:
        mine = (self._id, self.session.incarnation, request.fragment, request.version, request.attempt)
        if request.membership.incarnation != self.session.incarnation:
            return
        if self._trainer.fragment_steps(request.fragment) == 0:
            self.session.send(FragmentDeclined(*mine))
            return
        self._requests.sent(request)
        self._push(request, self._trainer.capture(request.fragment))

    def _push(self, request: GradientRequest, capture: "Capture") -> None:
        mine = (self._id, self.session.incarnation, request.fragment, request.version, request.attempt)
        payload = self._encoder.encode(capture, request.version)
        event = FragmentArrived(
            *mine, capture.base_version, capture.steps, capture.tokens, payload.size_bytes, payload.digest
        )
        self.session.push(event, payload)
        self._posted[request.fragment] = request.version
        self.session.post_pull(request.fragment, request.version, self._held(request.fragment))

    def _swap_in(self) -> None:
        for arrival in self._holdings.take():
            fragment, version = arrival.fragment, arrival.version
            self._trainer.apply(fragment, version, arrival.values)
            self._requests.received(fragment)
            ready = self._holdings.received(arrival)
            self.session.send(
                FragmentApplied(self._id, self.session.incarnation, fragment, version, self._trainer.steps)
            )
            if ready is not None:
                self._loaded = True
                self.session.send(LearnerReady(self._id, self.session.incarnation))

    def _evaluate(self) -> None:
        later = []
        for order in self._evaluations:
            exact = tuple(self._trainer.versions) == order.versions
            if order.final and not exact:  # the missing versions are on their way
                later.append(order)
                continue
            loss = self._trainer.evaluate()
            self.session.send(Evaluated(self._id, self.session.incarnation, order.evaluation, loss, exact))
        self._evaluations = later
