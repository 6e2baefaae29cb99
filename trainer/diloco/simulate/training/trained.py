"""A whole decoupled run in virtual time whose training is computed."""

from dataclasses import dataclass
from math import nan

from torch import Tensor

from diloco.learner.data.task import JobTask
from diloco.simulate.scenario import Scenario
from diloco.simulate.training.tensors import TensorModel, tensor_work
from diloco.simulate.world import Course, Simulation
from diloco.spec import DiLoCoJob
from diloco.spec.status.engine import EvaluationStatus


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
    course = Simulation(job, scenario, layout, work).complete()
    assert isinstance(work.model, TensorModel)
    evaluations = course.view.evaluations
    start, end = _loss(evaluations[0]), _loss(evaluations[-1])
    return Outcome(**vars(course), loss_start=start, loss=end, parameters=tuple(work.model.parameters))


def _loss(evaluation: EvaluationStatus) -> float:
    return nan if evaluation.loss is None else evaluation.loss
