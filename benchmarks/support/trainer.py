"""What ranks and replicas of other methods have of ours: a learner's own trainer; and a record of their steps."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TextIO

import torch
from torch import nn

from diloco.core.fragments import Fragment
from diloco.learner.checkpoint import CheckpointIdentity, CheckpointStore
from diloco.learner.data.opening import LearnerData, batch_size_of, open_data
from diloco.learner.training.trainer import InnerTrainer
from diloco.model.build import build_model
from diloco.model.fragments import layout_of, read_fragment
from diloco.spec import JobSpec, load_job


@dataclass(frozen=True, slots=True)
class Trained:
    """A model in one fragment, and what trains it."""

    spec: JobSpec
    module: nn.Module
    whole: Fragment
    trainer: InnerTrainer
    store: CheckpointStore

    @classmethod
    def by(cls, member: int | None, job_file: Path, checkpoints: Path, owner: str) -> Self:
        """By one member, on its batches, or by None, on those of all; ``owner``: whose the checkpoints are."""
        job = load_job(job_file)
        spec = job.spec
        module = build_model(spec)
        layout = layout_of(module, 1)
        data = _data_of(spec, member)
        trainer = InnerTrainer(spec, module, layout, data, torch.device("cpu"))
        identity = CheckpointIdentity(job.metadata.name, owner, layout.digest, trainer.optimizer_identity)
        return cls(spec, module, layout.fragments[0], trainer, CheckpointStore(checkpoints, identity))

    def loss(self) -> float:
        """Of the model as it is."""
        values = self.trainer.buffer(0)
        read_fragment(self.module, self.whole, values)
        return self.trainer.evaluate({0: values})


def _data_of(spec: JobSpec, member: int | None) -> LearnerData:
    """What a member takes, or the batches of all as one: the computation of data-parallel training without a network.

    Members take their batches of the job's order in turn.
    """
    members, size = len(spec.learner_ids), batch_size_of(spec, spec.learner_ids[0])
    if member is None:
        return open_data(spec, spec.learner_ids[0], batch_size=members * size)
    data = open_data(spec, spec.learner_ids[member])
    data.sampler.supply = lambda first, count: first * members + member * count
    return data


def steps_file(out: Path, member: int) -> TextIO:
    """A file for the steps of this process."""
    return (out / f"steps-{member}-{os.getpid()}.jsonl").open("w", buffering=1)


def note_step(log: TextIO, tokens: int, computing: float) -> None:
    """Note a step that ends now: its tokens, and its seconds of computing."""
    log.write(json.dumps({"at": time.time(), "tokens": tokens, "computing": computing}) + "\n")
