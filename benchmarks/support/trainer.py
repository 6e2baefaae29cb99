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
from diloco.learner.data import open_data, open_task
from diloco.learner.training.trainer import InnerTrainer
from diloco.model import build_model, layout_of, read_fragment
from diloco.simulate.baselines import AllShards
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
        """By one member, on a learner's shard, or by None, on all; ``owner``: whose the checkpoints are."""
        job = load_job(job_file)
        spec = job.spec
        module = build_model(spec)
        layout = layout_of(module, 1)
        # All learners' batches as one are the same computation as data-parallel training, without a network.
        data = AllShards.of(spec, open_task(spec)) if member is None else open_data(spec, spec.learner_ids[member])
        trainer = InnerTrainer(spec, module, layout, data, torch.device("cpu"))
        identity = CheckpointIdentity(job.metadata.name, owner, layout.digest, trainer.optimizer_identity)
        return cls(spec, module, layout.fragments[0], trainer, CheckpointStore(checkpoints, identity))

    def loss(self) -> float:
        """Of the model as it is."""
        values = self.trainer.buffer(0)
        read_fragment(self.module, self.whole, values)
        return self.trainer.evaluate({0: values})


def steps_file(out: Path, member: int) -> TextIO:
    """A file for the steps of this process."""
    return (out / f"steps-{member}-{os.getpid()}.jsonl").open("w", buffering=1)


def note_step(log: TextIO, tokens: int, computing: float) -> None:
    """Note a step that ends now: its tokens, and its seconds of computing."""
    log.write(json.dumps({"at": time.time(), "tokens": tokens, "computing": computing}) + "\n")
