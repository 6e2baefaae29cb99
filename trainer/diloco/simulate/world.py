"""A whole decoupled run in virtual time: learners, their restarts, the syncer, until the job is finished.

Lock-step DiLoCo is the same run with ``quorum`` = all learners and ``maxStalenessSteps`` = ``interval + overlap``.
"""

from collections.abc import Callable
from functools import partial

import torch

from diloco.learner.data import TokenSource, open_data, open_source
from diloco.learner.trainer import InnerTrainer
from diloco.model import build_model, layout_of, read_fragment
from diloco.simulate.clock import VirtualClock
from diloco.simulate.learner import Disk, SimulatedLearner
from diloco.simulate.outcome import Outcome
from diloco.simulate.scenario import Cut, Kill, Profile, Scenario
from diloco.simulate.session import Identity, Surroundings
from diloco.simulate.syncer import SimulatedSyncer
from diloco.spec import DiLoCoJob


class SimulationError(RuntimeError):
    """A simulated run that did not come to its end."""


def simulate(job: DiLoCoJob, scenario: Scenario, source: TokenSource | None = None) -> Outcome:
    """Train ``job`` in the world of ``scenario`` and return the final global model and what happened.

    The result is a function of its arguments, to the bit, for one torch and one number of torch threads.
    ``source``: the job's tokens, where the caller has opened them.

    Raises:
        ScenarioError: the scenario names a learner that the job does not have.
        SimulationError: the job was not complete at the scenario's deadline, or nothing was left to happen.
        ModelError, DataError: the job's model or data cannot be used.
    """
    spec = job.spec
    scenario.check_learners(spec.learner_ids)
    module = build_model(spec)
    layout = layout_of(module, spec.sync.fragments)
    initial = [torch.empty(fragment.numel) for fragment in layout.fragments]
    for fragment, values in zip(layout.fragments, initial, strict=True):
        read_fragment(module, fragment, values)
    clock = VirtualClock()
    syncer = SimulatedSyncer(job, layout, initial, clock, scenario.merge_seconds)
    around = Surroundings(spec, clock, syncer, scenario.reconnect_seconds, scenario.seed)
    tokens = open_source(spec.data) if source is None else source

    def new_trainer(learner: str) -> InnerTrainer:
        return InnerTrainer(spec, build_model(spec), layout, open_data(spec, learner, tokens), torch.device("cpu"))

    hosts = {learner: _Host(around, learner, scenario.profile(learner), new_trainer) for learner in spec.learner_ids}
    for learner, host in hosts.items():
        clock.at(scenario.profile(learner).start_seconds, host.start)
    for fault in scenario.faults:
        clock.at(fault.at_seconds, partial(hosts[fault.learner].suffer, fault))
    while syncer.finish is None and clock.now <= scenario.deadline_seconds and clock.advance():
        pass
    view = syncer.view()
    if syncer.finish is None or not syncer.finish.complete:
        late = "the scenario's deadline" if clock.now > scenario.deadline_seconds else "no learner is left"
        why = late if syncer.finish is None else syncer.finish.reason
        raise SimulationError(
            f"the run had not finished after {clock.now:.0f} virtual seconds with {view.merged_tokens:.0f} of"
            f" {view.budget_tokens} tokens merged: {why}"
        )
    return Outcome(
        loss_start=view.evaluations[0].loss,
        loss=view.evaluations[-1].loss,
        parameters=tuple(syncer.parameters),
        virtual_seconds=clock.now,
        view=view,
        counts=syncer.counts,
        trace_digest=syncer.trace_digest,
    )


class _Host:
    """Where one learner's processes run, one after the other."""

    def __init__(
        self, around: Surroundings, learner: str, profile: Profile, new_trainer: Callable[[str], InnerTrainer]
    ) -> None:
        self._around = around
        self._learner = learner
        self._profile = profile
        self._new_trainer = new_trainer
        self._disk = Disk()
        self._starts = 0
        self._process: SimulatedLearner | None = None

    def start(self) -> None:
        self._starts += 1
        identity = Identity(self._learner, f"{self._learner}#{self._starts}", self._profile)
        self._process = SimulatedLearner(self._around, identity, self._new_trainer(self._learner), self._disk)
        self._process.start()

    def suffer(self, fault: Kill | Cut) -> None:
        if self._process is None:
            return
        match fault:
            case Kill():
                self._process.kill()
                self._process = None
                if fault.restart_after_seconds is not None:
                    self._around.clock.after(fault.restart_after_seconds, self.start)
            case Cut():
                self._process.cut(fault.seconds)
