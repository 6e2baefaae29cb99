"""Runs one learner's processes in virtual time, one after the other, through faults, failures and preemptions."""

from functools import partial

from diloco.simulate.failures import Cause, Failures, Standstill, standstills
from diloco.simulate.learner import Disk, SimulatedLearner
from diloco.simulate.network.session import Environment, Identity
from diloco.simulate.scenario import Cut, Kill, Profile
from diloco.simulate.syncer import STARTED, Observer
from diloco.simulate.training.work import Work

RESTART_SECONDS = 5.0
"""Until a process that the syncer has ended is started again (ours)."""


class Host:
    """The machine of one learner."""

    def __init__(
        self, environment: Environment, learner: str, profile: Profile, work: Work, observer: Observer | None
    ) -> None:
        self._environment = environment
        self._learner = learner
        self._profile = profile
        self._work = work
        self._observer = observer
        self._disk = Disk()
        self._starts = 0
        self._process: SimulatedLearner | None = None

    def start(self) -> None:
        """Start a process, unless one runs."""
        if self._process is not None:
            return
        self._starts += 1
        stuck = partial(self._end, "ended by the syncer, as it made no steps", RESTART_SECONDS)
        identity = Identity(self._learner, f"{self._learner}#{self._starts}", self._profile, stuck)
        trainer, encoder = self._work.new_trainer(self._learner), self._work.new_encoder(self._disk.residuals)
        self._process = SimulatedLearner(self._environment, identity, trainer, encoder, self._disk)
        self._note(STARTED)
        self._process.session.open()
        if self._profile.building_seconds:
            self._process.pause(self._profile.building_seconds)

    def fail(self, failures: Failures) -> None:
        """Stand still from now on as ``failures`` says."""
        stops = standstills(failures, f"{self._environment.seed}/{self._learner}")
        began, clock = self._environment.clock.now, self._environment.clock

        def wait_for_next() -> None:
            stop = next(stops, None)
            if stop is not None:
                clock.at(began + stop.at_seconds, partial(stand_still, stop))

        def stand_still(stop: Standstill) -> None:
            if stop.ends_process:
                noticed = self._profile.notice_seconds >= self._profile.step_seconds
                self._end(stop.cause, stop.seconds, in_order=stop.cause is Cause.PREEMPTED and noticed)
            elif self._process is not None:
                self._process.pause(stop.seconds)
            wait_for_next()

        wait_for_next()

    def inject(self, fault: Kill | Cut) -> None:
        """Let a fault happen now."""
        if self._process is None:
            return
        match fault:
            case Kill():
                self._end("killed", fault.restart_after_seconds)
            case Cut():
                self._process.session.cut(fault.seconds)

    def _end(self, why: str, restart_after_seconds: float | None, *, in_order: bool = False) -> None:
        if self._process is None:
            return
        if in_order:
            self._process.leave()
        else:
            self._process.session.end()
        self._process = None
        self._note(why)
        if restart_after_seconds is not None:
            self._environment.clock.after(restart_after_seconds, self.start)

    def _note(self, change: str) -> None:
        if self._observer is not None:
            self._observer.process(self._learner, self._environment.clock.now, change)
