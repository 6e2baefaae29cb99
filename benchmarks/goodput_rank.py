"""One rank of synchronous data-parallel training with checkpoints, for the benchmark `goodput`. torchrun may start it.

It trains with the learner's own trainer, data and checkpoints, and averages gradients over gloo. RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT are set as torchrun sets them; the number of ranks may differ from start to start. If
another rank goes, the all-reduce fails, and this process ends with it.

    python benchmarks/goodput_rank.py JOB.yaml OUT --checkpoint-seconds 5
"""

import argparse
import dataclasses
import datetime as dt
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from diloco.learner.checkpoint import LearnerCheckpoint
from diloco.model import read_fragment, write_fragment
from goodput_trainer import Trained, note_step, steps_file
from wan_data_parallel import AveragedGradients

PATIENCE = dt.timedelta(seconds=10)


def train(job_file: Path, out: Path, checkpoint_seconds: float) -> None:
    """Train from the newest checkpoint to the end of the budget; rank 0 writes checkpoints and the result."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    trained = Trained.by(rank, job_file, out / "checkpoints", "rank 0")
    spec, module, whole, trainer = trained.spec, trained.module, trained.whole, trained.trainer
    # The model stands in the checkpoint where a learner keeps what its encoding has lost.
    tokens = 0
    if (saved := trained.store.load()) is not None:
        trainer.load_state(saved.state)
        write_fragment(module, whole, saved.residuals[0])
        tokens = saved.state.tokens
    averaged = AveragedGradients(module)
    values = trainer.buffer(0)
    written_at = time.monotonic()
    with steps_file(out, rank) as log:
        while tokens < spec.training.tokens:
            waited = averaged.seconds
            result = trainer.step(tokens / spec.training.tokens)
            computing = result.seconds - (averaged.seconds - waited)
            tokens += ranks * result.tokens
            note_step(log, result.tokens, computing)
            if rank == 0 and time.monotonic() - written_at > checkpoint_seconds:
                read_fragment(module, whole, values)
                state = dataclasses.replace(trainer.state(), tokens=tokens)
                trained.store.save(LearnerCheckpoint(state, {0: values}))
                written_at = time.monotonic()
    if rank == 0:
        (out / "result.json").write_text(trained.result(tokens))
    dist.barrier()


def main() -> None:
    """Train as one rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--checkpoint-seconds", type=float, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=PATIENCE)
    train(arguments.job, arguments.out, arguments.checkpoint_seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
