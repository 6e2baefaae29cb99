"""Baselines for decoupled training: per-step data-parallel training of the whole job, and one learner alone.

Both use the learner's own trainer, data and learning-rate schedule, without a syncer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diloco.learner.data.opening import LearnerData, batch_size_of, open_data
from diloco.learner.data.task import JobTask
from diloco.learner.training.trainer import InnerTrainer
from diloco.model.build import build_model
from diloco.model.fragments import layout_of, read_fragment
from diloco.spec import DiLoCoJob, JobSpec


@dataclass(frozen=True, slots=True)
class Baseline:
    """A finished run."""

    loss_start: float
    loss: float
    steps: int
    trained_tokens: int
    loss_of: Callable[[Tensor], float] = field(compare=False)
    """The loss of other parameters, flat f32."""


Watch = Callable[[Callable[[], Tensor]], None]
"""Is called after each step with what reads the parameters, flat f32."""


def data_parallel(job: DiLoCoJob, task: JobTask | None = None, watch: Watch = lambda _: None) -> Baseline:
    """Train with all learners' batches in every step, gradients averaged, until the budget is used.

    Raises:
        ModelError, DataError: the job's model or data cannot be used.
        ValueError: pools differ in batch size.
    """
    spec = job.spec
    sizes = {batch_size_of(spec, learner) for learner in spec.learner_ids}
    if len(sizes) != 1:
        raise ValueError(f"the pools' batch sizes are {sorted(sizes)}: data-parallel training here needs one")
    batch_size = sizes.pop() * len(spec.learner_ids)
    return _train(spec, open_data(spec, spec.learner_ids[0], task, batch_size=batch_size), watch)


def alone(job: DiLoCoJob, task: JobTask | None = None, watch: Watch = lambda _: None) -> Baseline:
    """Train the first learner alone, with its share of the budget: as many steps, 1/M of the tokens.

    Raises:
        ModelError, DataError: the job's model or data cannot be used.
    """
    spec = job.spec
    return _train(spec, open_data(spec, spec.learner_ids[0], task), watch)


def _train(spec: JobSpec, data: LearnerData, watch: Watch) -> Baseline:
    """Train for as many steps as each learner makes if they share the budget evenly."""
    module = build_model(spec)
    layout = layout_of(module, 1)
    trainer = InnerTrainer(spec, module, layout, data, torch.device("cpu"))
    loss_start = trainer.evaluate()
    sequences = sum(batch_size_of(spec, learner) for learner in spec.learner_ids)
    steps = max(1, spec.training.tokens // (sequences * spec.training.sequence_length))

    def read() -> Tensor:
        values = torch.empty(layout.fragments[0].numel)
        read_fragment(module, layout.fragments[0], values)
        return values

    def loss_of(values: Tensor) -> float:
        return trainer.evaluate({0: values})

    for step in range(steps):
        trainer.step(step / steps)
        watch(read)
    return Baseline(loss_start, loss_of(read()), trainer.steps, trainer.tokens, loss_of)
