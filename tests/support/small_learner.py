"""A learner of a small job: its options, and its trainer."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from diloco.learner.data.opening import open_data
from diloco.learner.options import LearnerOptions
from diloco.learner.training.trainer import InnerTrainer
from diloco.model.build import build_model
from diloco.model.fragments import layout_of
from diloco.spec import JobSpec
from tests.support.small_job import named_job, small_job, write_text


def learner_options(folder: Path, spec: Mapping[str, Any] = MappingProxyType({}), /, **changes: Any) -> LearnerOptions:
    """Of a learner whose directory is ``folder / "learner"``. ``spec`` replaces fields of the job's spec."""
    job = named_job("small", small_job(write_text(folder), **spec))
    return replace(LearnerOptions(job, "here/cpu/0", "127.0.0.1:1", folder / "learner", threads=1), **changes)


def trainer_of(job: JobSpec, learner: int = 0, device: str = "cpu") -> InnerTrainer:
    """The trainer of one of the job's learners, by number."""
    module = build_model(job).to(device)
    data = open_data(job, job.learner_ids[learner])
    learners = len(job.learner_ids)
    data.sampler.supply = lambda first, count: first * learners + learner * count
    return InnerTrainer(job, module, layout_of(module, job.sync.fragments), data, torch.device(device))
