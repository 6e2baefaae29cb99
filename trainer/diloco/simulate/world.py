"""A whole decoupled run in virtual time: learners, their restarts, the syncer, until the job is finished.

Lock-step DiLoCo is the same run with ``quorum`` = all learners and ``maxStalenessSteps`` = ``interval + overlap``.
"""

from dataclasses import dataclass
from functools import partial
from math import inf

from diloco.core.engine.actions import Finish, Merge
from diloco.core.engine.engine import Progress
from diloco.core.engine.options import EngineOptions
from diloco.core.fragments import Layout
from diloco.core.sizes import F32
from diloco.simulate.host import Host
from diloco.simulate.network.clock import VirtualClock
from diloco.simulate.network.session import Environment, Traffic
from diloco.simulate.network.shared_line import SharedLine
from diloco.simulate.scenario import Scenario
from diloco.simulate.syncer import Counts, Observer, SimulatedSyncer
from diloco.simulate.training.counted import counted_work
from diloco.simulate.training.work import Work
from diloco.spec import DiLoCoJob
from diloco.spec.status.engine import EngineStatus


class SimulationError(RuntimeError):
    """A simulated run did not finish."""


@dataclass(frozen=True)
class Course:
    """How a run went, whether or not training was computed."""

    virtual_seconds: float
    view: EngineStatus
    counts: Counts


class Simulation:
    """One run, from its start for as long as it is wanted."""

    def __init__(
        self, job: DiLoCoJob, scenario: Scenario, layout: Layout, work: Work, observer: Observer | None = None
    ) -> None:
        """``observer`` is told of every event.

        Raises:
            ScenarioError: the scenario names a learner that the job does not have.
        """
        spec = job.spec
        scenario.check_learners(spec.learner_ids)
        self.scenario = scenario
        self._clock = clock = VirtualClock()

        def merge_seconds(order: Merge) -> float:
            merged_bytes = len(order.members) * F32.payload_bytes(layout.fragments[order.fragment].numel)
            return scenario.merge_seconds + merged_bytes / scenario.merge_bytes_per_second

        options = EngineOptions.from_job(job, layout)
        self._syncer = SimulatedSyncer(options, work.model, clock, merge_seconds, observer)
        lines = {name: (SharedLine(clock, rate), SharedLine(clock, rate)) for name, rate in scenario.lines.items()}
        self.traffic = Traffic()
        environment = Environment(
            spec, clock, self._syncer, scenario.reconnect_seconds, scenario.seed, lines, self.traffic
        )
        hosts = {
            learner: Host(environment, learner, scenario.profile(learner), work, observer)
            for learner in spec.learner_ids
        }
        for learner, host in hosts.items():
            clock.at(scenario.profile(learner).start_seconds, host.start)
        for learner, failures in scenario.failures.items():
            clock.at(scenario.profile(learner).start_seconds, partial(hosts[learner].fail, failures))
        for fault in scenario.faults:
            clock.at(fault.at_seconds, partial(hosts[fault.learner].inject, fault))

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self._clock.now

    @property
    def events(self) -> int:
        """Things that have happened."""
        return self._clock.happened

    @property
    def finish(self) -> Finish | None:
        """How the job ended; None while it has not."""
        return self._syncer.finish

    @property
    def progress(self) -> Progress:
        """How far the job is."""
        return self._syncer.progress

    def advance(self, until_seconds: float = inf, most_events: float = inf) -> bool:
        """Go on until the job is over, this time has passed, or so many things have happened.

        Returns whether it can go on: the job is not over, and something is left to happen.
        """
        return self._clock.run(until_seconds, most_events)

    def course(self) -> Course:
        """How it went so far."""
        return Course(self.now, self._syncer.view(), self._syncer.counts)

    def complete(self) -> Course:
        """How it goes to its end.

        Raises:
            SimulationError: the job was not complete at the scenario's deadline, or no event was left.
        """
        deadline = self.scenario.deadline_seconds
        self.advance(deadline)
        course, finish = self.course(), self.finish
        if finish is None or not finish.complete:
            late = "the scenario's deadline" if self.now > deadline else "no learner is left"
            why = late if finish is None else finish.reason
            raise SimulationError(
                f"the run had not finished after {self.now:.0f} virtual seconds with {course.view.merged_tokens:.0f} of"
                f" {course.view.budget_tokens} tokens merged: {why}"
            )
        return course


def simulate_course(job: DiLoCoJob, scenario: Scenario, layout: Layout, stop_seconds: float | None = None) -> Course:
    """Run ``job`` as ``scenario`` says, without training: who merges what when, and what the links carry.

    ``layout`` stands for the job's model, which is not built, so it may be of any size. ``stop_seconds``: virtual time
    at which the run's state is returned, finished or not; None: when it has finished.

    Raises:
        ScenarioError: the scenario names a learner that the job does not have.
        SimulationError: the job was not complete at the scenario's deadline, or no event was left.
    """
    simulation = Simulation(job, scenario, layout, counted_work(job.spec, layout))
    if stop_seconds is not None and simulation.advance(stop_seconds) and simulation.now > stop_seconds:
        return simulation.course()
    return simulation.complete()
