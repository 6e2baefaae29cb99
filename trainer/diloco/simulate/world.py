"""A whole decoupled run in virtual time: learners, their restarts, the syncer, until the job is finished.

Lock-step DiLoCo is the same run with ``quorum`` = all learners and ``maxStalenessSteps`` = ``interval + overlap``.
"""

from dataclasses import dataclass, replace
from functools import partial

from diloco.core.fragments import Layout
from diloco.core.options import CURRENT_RULES, EngineOptions, Rules
from diloco.learner.data import TokenSource
from diloco.simulate.clock import VirtualClock
from diloco.simulate.counted import counted_work
from diloco.simulate.learner import Disk, SimulatedLearner
from diloco.simulate.outcome import Course, Outcome
from diloco.simulate.scenario import Cut, Kill, Profile, Scenario
from diloco.simulate.session import Environment, Identity
from diloco.simulate.syncer import SimulatedSyncer
from diloco.simulate.tensors import TensorModel, tensor_work
from diloco.simulate.work import Work
from diloco.spec import DiLoCoJob


class SimulationError(RuntimeError):
    """A simulated run did not finish."""


def simulate(job: DiLoCoJob, scenario: Scenario, source: TokenSource | None = None) -> Outcome:
    """Train ``job`` under the conditions of ``scenario``; returns the final global model and what happened.

    The result depends on its arguments alone, to the bit, for one torch and one number of torch threads. ``source``:
    the job's tokens, if the caller has opened them.

    Raises:
        ScenarioError: the scenario names a learner that the job does not have.
        SimulationError: the job was not complete at the scenario's deadline, or no event was left.
        ModelError, DataError: the job's model or data cannot be used.
    """
    scenario.check_learners(job.spec.learner_ids)
    layout, work = tensor_work(job.spec, source)
    course = _run(job, scenario, layout, work, RunOptions())
    assert isinstance(work.model, TensorModel)
    evaluations = course.view.evaluations
    return Outcome(
        loss_start=evaluations[0].loss,
        loss=evaluations[-1].loss,
        parameters=tuple(work.model.parameters),
        virtual_seconds=course.virtual_seconds,
        view=course.view,
        counts=course.counts,
        trace_digest=course.trace_digest,
    )


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run besides its job and scenario."""

    rules: Rules = CURRENT_RULES
    """Rules by which the engine decides."""
    stop_seconds: float | None = None
    """Virtual time at which the run's state is returned, finished or not; None: when it has finished."""


def simulate_course(
    job: DiLoCoJob, scenario: Scenario, layout: Layout, run_options: RunOptions = RunOptions()
) -> Course:  # frozen
    """Run ``job`` as ``scenario`` says, without training: who merges what when, and what the links carry.

    ``layout`` stands for the job's model, which is not built, so it may be of any size.

    Raises:
        ScenarioError: the scenario names a learner that the job does not have.
        SimulationError: the job was not complete at the scenario's deadline, or no event was left.
    """
    scenario.check_learners(job.spec.learner_ids)
    return _run(job, scenario, layout, counted_work(job.spec, layout), run_options)


def _run(job: DiLoCoJob, scenario: Scenario, layout: Layout, work: Work, run_options: RunOptions) -> Course:
    spec = job.spec
    clock = VirtualClock()
    options = replace(EngineOptions.from_job(job, layout), rules=run_options.rules)
    syncer = SimulatedSyncer(options, work.model, clock, scenario.merge_seconds)
    environment = Environment(spec, clock, syncer, scenario.reconnect_seconds, scenario.seed)
    hosts = {learner: _Host(environment, learner, scenario.profile(learner), work) for learner in spec.learner_ids}
    for learner, host in hosts.items():
        clock.at(scenario.profile(learner).start_seconds, host.start)
    for fault in scenario.faults:
        clock.at(fault.at_seconds, partial(hosts[fault.learner].inject, fault))
    end = scenario.deadline_seconds if run_options.stop_seconds is None else run_options.stop_seconds
    while syncer.finish is None and clock.now <= end and clock.advance():
        pass
    view = syncer.view()
    stopped = run_options.stop_seconds is not None and clock.now > end
    if not stopped and (syncer.finish is None or not syncer.finish.complete):
        late = "the scenario's deadline" if clock.now > end else "no learner is left"
        why = late if syncer.finish is None else syncer.finish.reason
        raise SimulationError(
            f"the run had not finished after {clock.now:.0f} virtual seconds with {view.merged_tokens:.0f} of"
            f" {view.budget_tokens} tokens merged: {why}"
        )
    return Course(clock.now, view, syncer.counts, syncer.trace_digest)


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
        self._process.start()

    def inject(self, fault: Kill | Cut) -> None:
        if self._process is None:
            return
        match fault:
            case Kill():
                self._process.kill()
                self._process = None
                if fault.restart_after_seconds is not None:
                    self._environment.clock.after(fault.restart_after_seconds, self.start)
            case Cut():
                self._process.cut(fault.seconds)
