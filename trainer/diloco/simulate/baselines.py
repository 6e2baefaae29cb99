"""Baselines for decoupled training: per-step data-parallel training of the whole job, and one learner alone.

Both use the learner's own trainer, data and learning-rate schedule, without a syncer.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from diloco.learner.data import JobTask, LearnerData, ShardSampler, batch_size_of, open_data, open_task
from diloco.learner.data.holdout import training_sequences
from diloco.learner.training.trainer import InnerTrainer
from diloco.model import build_model, layout_of, read_fragment
from diloco.spec import DiLoCoJob, JobSpec


@dataclass(frozen=True, slots=True)
class Baseline:
    """A finished run."""

    loss_start: float
    loss: float
    steps: int
    trained_tokens: int


class AllShards(ShardSampler):
    """Every shard's next batch as one: its mean gradient is the one that data-parallel learners would average.

    The shards' batches must be of one size. Its position is that of each shard.
    """

    def __init__(self, sequences: int, samplers: tuple[ShardSampler, ...]) -> None:
        super().__init__(sequences, samplers[0].shard)
        self._samplers = samplers

    @classmethod
    def of(cls, spec: JobSpec, task: JobTask) -> LearnerData:
        """The data of a job as one learner that has all shards.

        Raises:
            DataError: it cannot be used.
            ValueError: pools differ in batch size.
        """
        shards = [open_data(spec, learner, task) for learner in spec.learner_ids]
        sizes = {data.sampler.shard.batch_size for data in shards}
        if len(sizes) != 1:
            raise ValueError(f"the pools' batch sizes are {sorted(sizes)}: data-parallel training here needs one")
        sequences = training_sequences(len(task), spec.data.holdout_fraction)
        return LearnerData(task, cls(sequences, tuple(data.sampler for data in shards)), shards[0].holdout)

    def seek(self, position: int) -> None:
        """Continue as if ``position`` sequences had been taken from each shard."""
        super().seek(position)
        for sampler in self._samplers:
            sampler.seek(position)

    def next_numbers(self) -> NDArray[np.int64]:
        """The next ``batch_size`` sequences of each shard."""
        numbers = [sampler.next_numbers() for sampler in self._samplers]
        super().seek(self._samplers[0].position)
        return np.concatenate(numbers)


def data_parallel(job: DiLoCoJob, task: JobTask | None = None) -> Baseline:
    """Train with all learners' batches in every step, gradients averaged, until the budget is used.

    Raises:
        ModelError, DataError: the job's model or data cannot be used.
        ValueError: pools differ in batch size.
    """
    spec = job.spec
    return _train(spec, AllShards.of(spec, open_task(spec) if task is None else task))


def alone(job: DiLoCoJob, task: JobTask | None = None) -> Baseline:
    """Train the first learner alone, on its shard, with its share of the budget: as many steps, 1/M of the tokens.

    Raises:
        ModelError, DataError: the job's model or data cannot be used.
    """
    spec = job.spec
    return _train(spec, open_data(spec, spec.learner_ids[0], task))


def _train(spec: JobSpec, data: LearnerData) -> Baseline:
    """Train for as many steps as each learner makes if they share the budget evenly."""
    module = build_model(spec)
    layout = layout_of(module, 1)
    trainer = InnerTrainer(spec, module, layout, data, torch.device("cpu"))
    loss_start = trainer.evaluate()
    sequences = sum(batch_size_of(spec, learner) for learner in spec.learner_ids)
    steps = max(1, spec.training.tokens // (sequences * spec.training.sequence_length))
    for step in range(steps):
        trainer.step(step / steps)
    values = trainer.buffer(0)
    read_fragment(module, layout.fragments[0], values)
    return Baseline(loss_start, trainer.evaluate({0: values}), trainer.steps, trainer.tokens)
