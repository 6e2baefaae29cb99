"""One rank of synchronous data-parallel training, for the benchmarks `wan` and `goodput`. torchrun may start it.

It trains with the learner's own trainer, data, learning-rate schedule and checkpoints. RANK, WORLD_SIZE, MASTER_ADDR
and MASTER_PORT are set as torchrun sets them; the number of ranks may differ from start to start. If another rank goes,
the all-reduce fails, and this process ends with it.

    python -m support.rank JOB.yaml OUT --checkpoint-seconds 5
"""

import argparse
import dataclasses
import datetime as dt
import json
import math
import time
from pathlib import Path

import torch
import torch.distributed as dist

from diloco.learner.checkpoint import LearnerCheckpoint
from diloco.learner.exchange.residuals import Residual
from diloco.model.fragments import read_fragment, write_fragment
from support.trainer import Trained, note_step, steps_file


class AveragedGradients:
    """Averages the gradients of all ranks at the end of every backward pass.

    One all-reduce in f32 when the last of them is there, as PyTorch's DistributedDataParallel does with a model below a
    bucket (25 MiB).
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._there = 0
        self.seconds = 0.0
        """Spent in all-reduces."""
        if dist.get_world_size() > 1:
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


def train(trained: Trained, out: Path, checkpoint_seconds: float, looks: int) -> None:
    """Train from the newest checkpoint to the end of the budget; rank 0 writes checkpoints and the result.

    ``looks``: evaluations on rank 0, the last at the end; the time that they take is left out.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    module, whole, trainer, budget = trained.module, trained.whole, trained.trainer, trained.spec.training.tokens
    # The model stands in the checkpoint where a learner keeps what its encoding has lost.
    tokens = 0
    if (saved := trained.store.load()) is not None:
        trainer.load_state(saved.state)
        write_fragment(module, whole, saved.residuals[0].values)
        tokens = saved.state.tokens
    averaged = AveragedGradients(module)
    values = trainer.buffer(0)
    evaluations: list[dict[str, float]] = []
    began = written_at = time.monotonic()
    away = 0.0
    with steps_file(out, rank) as log:
        while tokens < budget:
            before, waited = tokens, averaged.seconds
            result = trainer.step(tokens / budget)
            tokens += ranks * result.tokens
            note_step(log, result.tokens, result.seconds - (averaged.seconds - waited))
            now = time.monotonic()
            if rank == 0 and now - written_at > checkpoint_seconds:
                read_fragment(module, whole, values)
                state = dataclasses.replace(trainer.state(), tokens=tokens)
                trained.store.save(LearnerCheckpoint(state, {0: Residual(0, values)}))
                written_at = time.monotonic()
            if tokens * looks // budget == before * looks // budget:
                continue
            if rank == 0:
                found = {"seconds": now - began - away, "tokens": tokens, "loss": trained.loss()}
                evaluations.append(found)
                share = averaged.seconds / found["seconds"]
                more = {"steps": trainer.steps, "blocked_share": share, "evaluations": evaluations}
                (out / "result.json").write_text(json.dumps(found | more))
            dist.barrier()  # so that the others' wait counts as evaluation, too
            away += time.monotonic() - now


def main() -> None:
    """Train as one rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--checkpoint-seconds", type=float, default=math.inf)
    parser.add_argument("--looks", type=int, default=1)
    parser.add_argument("--patience-seconds", type=float, default=10.0, help="of an all-reduce")
    parser.add_argument("--all-shards", action="store_true", help="take every learner's batch in each step")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=arguments.patience_seconds))
    member = None if arguments.all_shards else dist.get_rank()
    trained = Trained.by(member, arguments.job, arguments.out / "checkpoints", "rank 0")
    train(trained, arguments.out, arguments.checkpoint_seconds, arguments.looks)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
