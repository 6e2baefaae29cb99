"""One rank of synchronous data-parallel training over gloo, for the benchmark `wan`; or, alone, all of it.

It trains with the learner's own trainer, data and learning-rate schedule. Gradients are averaged in one all-reduce when
the last of them is there, in f32, as PyTorch's DistributedDataParallel does with a model below a bucket (25 MiB).
A single rank takes every learner's batch in each step, which is the same computation without a network.

    python benchmarks/wan_data_parallel.py JOB.yaml OUT.json --rank 0 --of 4 --rendezvous 10.77.0.2:29500
"""

import argparse
import datetime as dt
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from diloco.learner.data import LearnerData, open_data, open_source
from diloco.learner.data.holdout import training_tokens
from diloco.learner.training.trainer import InnerTrainer
from diloco.model import build_model, layout_of, read_fragment
from diloco.simulate.baselines import AllShards
from diloco.spec import JobSpec, load_job

PATIENCE = dt.timedelta(minutes=30)


class AveragedGradients:
    """Averages the gradients of all ranks at the end of every backward pass."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._there = 0
        self.seconds = 0.0
        """Spent in all-reduces."""
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._one)  # type: ignore[no-untyped-call]  # torch's own

    def _one(self, _: torch.Tensor) -> None:
        self._there += 1
        if self._there < len(self._parameters):
            return
        self._there = 0
        began = time.monotonic()
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for gradient, part in zip(gradients, torch.split(flat, [one.numel() for one in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
        self.seconds += time.monotonic() - began


def data_of(spec: JobSpec, rank: int, ranks: int) -> LearnerData:
    """The shard of a rank; of a single rank all shards, batch by batch together."""
    if ranks > 1:
        return open_data(spec, spec.learner_ids[rank])
    source = open_source(spec.data)
    shards = [open_data(spec, learner, source) for learner in spec.learner_ids]
    train = training_tokens(len(source), spec.data.holdout_fraction)
    sampler = AllShards(source, train, tuple(data.sampler for data in shards))
    return LearnerData(source, shards[0].field, sampler, shards[0].holdout)


def train(spec: JobSpec, rank: int, ranks: int, steps: int, looks: int) -> dict[str, Any]:
    """Train, and evaluate ``looks`` times on rank 0; the time that takes is left out."""
    module = build_model(spec)
    layout = layout_of(module, 1)
    trainer = InnerTrainer(spec, module, layout, data_of(spec, rank, ranks), torch.device("cpu"))
    averaged = AveragedGradients(module) if ranks > 1 else None
    values = trainer.buffer(0)
    evaluations: list[dict[str, float]] = []
    began, away = time.monotonic(), 0.0
    for step in range(steps):
        trainer.step(step / steps)
        if (step + 1) % max(1, steps // looks) and step + 1 < steps:
            continue
        looked = time.monotonic()
        if rank == 0:
            read_fragment(module, layout.fragments[0], values)
            tokens = trainer.tokens * ranks
            evaluations.append(
                {"seconds": looked - began - away, "tokens": tokens, "loss": trainer.evaluate({0: values})}
            )
        if ranks > 1:
            dist.barrier()  # so that the others' wait counts as evaluation, too
        away += time.monotonic() - looked
    seconds = time.monotonic() - began - away
    waited = 0.0 if averaged is None else averaged.seconds
    return {
        "seconds": seconds,
        "steps": trainer.steps,
        "tokens": trainer.tokens * ranks,
        "blocked_share": waited / seconds,
        "evaluations": evaluations,
    }


def main() -> None:
    """Train as one rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--of", type=int, default=1, help="number of ranks")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--looks", type=int, default=8, help="number of evaluations")
    parser.add_argument("--rendezvous", help="HOST:PORT of rank 0")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    spec = load_job(arguments.job).spec
    if arguments.of > 1:
        dist.init_process_group(
            "gloo", f"tcp://{arguments.rendezvous}", rank=arguments.rank, world_size=arguments.of, timeout=PATIENCE
        )
    arguments.out.write_text(json.dumps(train(spec, arguments.rank, arguments.of, arguments.steps, arguments.looks)))
    if arguments.of > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
