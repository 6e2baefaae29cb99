"""A whole decoupled run in virtual time: learners, their restarts, the syncer, until the job is finished.

Lock-step DiLoCo is the same run with ``quorum`` = all learners and ``maxStalenessSteps`` = ``interval + overlap``.
"""

from dataclasses import dataclass
from functools import partial
from math import nan

from torch import Tensor

from diloco.core.engine.options import EngineOptions
from diloco.core.fragments import Layout
from diloco.learner.data.task import JobTask
from diloco.simulate.clock import VirtualClock
from diloco.simulate.counted import counted_work
from diloco.simulate.failures import Failures, Standstill, standstills
from diloco.simulate.learner import Disk, SimulatedLearner
from diloco.simulate.scenario import Cut, Kill, Profile, Scenario
from diloco.simulate.session import Environment, Identity
from diloco.simulate.syncer import Counts, SimulatedSyncer
from diloco.simulate.tensors import TensorModel, tensor_work
from diloco.simulate.work import Work
from diloco.spec import DiLoCoJob
from diloco.spec.status.engine import EngineStatus, EvaluationStatus


class SimulationError(RuntimeError):
    """A simulated run did not finish."""


@dataclass(frozen=True)
class Course:
    """How a run went, whether or not training was computed."""

    virtual_seconds: float
    view: EngineStatus
    counts: Counts


@dataclass(frozen=True)
class Outcome(Course):
    """A finished run whose training was computed. Losses are of evaluations, in the task's unit."""

    loss_start: float
    loss: float
    parameters: tuple[Tensor, ...]
    """The final global model: one flat f32 buffer per fragment."""


def simulate(job: DiLoCoJob, scenario: Scenario, task: JobTask | None = None) -> Outcome:
    """Train ``job`` under the conditions of ``scenario``; returns the final global model and what happened.

    The result depends on its arguments alone, to the bit, for one torch and one number of torch threads. ``task``: the
    job's, if the caller has opened it.

    Raises:
        ScenarioError: the scenario names a learner that the job does not have.
        SimulationError: the job was not complete at the scenario's deadline, or no event was left.
        ModelError, DataError: the job's model or data cannot be used.
    """
    scenario.check_learners(job.spec.learner_ids)
    layout, work = tensor_work(job.spec, task)
    course = _run(job, scenario, layout, work)
    assert isinstance(work.model, TensorModel)
    evaluations = course.view.evaluations
    start, end = _loss(evaluations[0]), _loss(evaluations[-1])
    return Outcome(**vars(course), loss_start=start, loss=end, parameters=tuple(work.model.parameters))


def _loss(evaluation: EvaluationStatus) -> float:
    return nan if evaluation.loss is None else evaluation.loss


def simulate_course(job: DiLoCoJob, scenario: Scenario, layout: Layout, stop_seconds: float | None = None) -> Course:
    """Run ``job`` as ``scenario`` says, without training: who merges what when, and what the links carry.

    ``layout`` stands for the job's model, which is not built, so it may be of any size. ``stop_seconds``: virtual time
    at which the run's state is returned, finished or not; None: when it has finished.

    Raises:
        ScenarioError: the scenario names a learner that the job does not have.
        SimulationError: the job was not complete at the scenario's deadline, or no event was left.
    """
    scenario.check_learners(job.spec.learner_ids)
    return _run(job, scenario, layout, counted_work(job.spec, layout), stop_seconds)


def _run(job: DiLoCoJob, scenario: Scenario, layout: Layout, work: Work, stop_seconds: float | None = None) -> Course:
    spec = job.spec
    clock = VirtualClock()
    options = EngineOptions.from_job(job, layout)
    syncer = SimulatedSyncer(options, work.model, clock, scenario.merge_seconds)
    environment = Environment(spec, clock, syncer, scenario.reconnect_seconds, scenario.seed)
    hosts = {learner: _Host(environment, learner, scenario.profile(learner), work) for learner in spec.learner_ids}
    for learner, host in hosts.items():
        clock.at(scenario.profile(learner).start_seconds, host.start)
    for learner, failures in scenario.failures.items():
        clock.at(scenario.profile(learner).start_seconds, partial(hosts[learner].fail, failures))
    for fault in scenario.faults:
        clock.at(fault.at_seconds, partial(hosts[fault.learner].inject, fault))
    end = scenario.deadline_seconds if stop_seconds is None else stop_seconds
    while syncer.finish is None and clock.now <= end and clock.advance():
        pass
    view = syncer.view()
    stopped = stop_seconds is not None and clock.now > end
    if not stopped and (syncer.finish is None or not syncer.finish.complete):
        late = "the scenario's deadline" if clock.now > end else "no learner is left"
        why = late if syncer.finish is None else syncer.finish.reason
        raise SimulationError(
            f"the run had not finished after {clock.now:.0f} virtual seconds with {view.merged_tokens:.0f} of"
            f" {view.budget_tokens} tokens merged: {why}"
        )
    return Course(clock.now, view, syncer.counts)


class _Host:
    """Runs one learner's processes, one after the other."""

    def __init__(self, environment: Environment, learner: str, profile: Profile, work: Work) -> None:
        self._environment = environment
        self._learner = learner
        self._profile = profile
        self._work = work
        self._disk = Disk()
        self._starts = 0
        self._process: SimulatedLearner | None = None

    def start(self) -> None:
        self._starts += 1
        identity = Identity(self._learner, f"{self._learner}#{self._starts}", self._profile)
        trainer, encoder = self._work.new_trainer(self._learner), self._work.new_encoder(self._disk.residuals)
        self._process = SimulatedLearner(self._environment, identity, trainer, encoder, self._disk)
        self._process.session.open()

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
                self.inject(Kill(self._learner, clock.now, stop.seconds))
            elif self._process is not None:
                self._process.pause(stop.seconds)
            wait_for_next()

        wait_for_next()

    def inject(self, fault: Kill | Cut) -> None:
        if self._process is None:
            return
        match fault:
            case Kill():
                self._process.session.end()
                self._process = None
                if fault.restart_after_seconds is not None:
                    self._environment.clock.after(fault.restart_after_seconds, self.start)
            case Cut():
                self._process.session.cut(fault.seconds)
