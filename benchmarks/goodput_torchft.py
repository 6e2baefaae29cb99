"""One replica of torchft's DiLoCo, for the benchmark `goodput`.

It trains with the learner's own trainer, data and learning-rate schedule, and has `sync.interval` inner steps between
two merges of the whole model. As with a learner, its inner optimizer and its place in the data come from its own
checkpoint, and the model from the others. It needs torchft, in an environment of its own (`goodput_groups.py`).

    torchft_lighthouse --min_replicas 1 --bind 127.0.0.1:29510
    python benchmarks/goodput_torchft.py JOB.yaml OUT --speed 0.2 --member 0 --lighthouse http://127.0.0.1:29510
"""

import argparse
import datetime as dt
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torchft.local_sgd import DiLoCo  # type: ignore[import-not-found]  # it has an environment of its own
from torchft.manager import Manager  # type: ignore[import-not-found]
from torchft.process_group import ProcessGroupGloo  # type: ignore[import-not-found]

from diloco.learner.checkpoint import CheckpointIdentity, CheckpointStore, LearnerCheckpoint
from diloco.learner.data import open_data
from diloco.learner.inner_loop import sleep_for_speed
from diloco.learner.training.trainer import InnerTrainer
from diloco.local.launch import free_ports
from diloco.model import build_model, layout_of, read_fragment, trained_parameters
from diloco.spec import load_job

PATIENCE = dt.timedelta(seconds=60)


def train(job_file: Path, out: Path, member: int, speed: float, lighthouse: str) -> None:
    """Train until the replicas together have merged the budget; the first to see it writes the result."""
    job = load_job(job_file)
    spec = job.spec
    module = build_model(spec)
    layout = layout_of(module, 1)
    (whole,) = layout.fragments
    trainer = InnerTrainer(spec, module, layout, open_data(spec, spec.learner_ids[member]), torch.device("cpu"))
    identity = CheckpointIdentity(job.metadata.name, str(member), layout.digest, trainer.optimizer_identity)
    store = CheckpointStore(out / f"checkpoints-{member}", identity)
    if (saved := store.load()) is not None:
        trainer.load_state(saved.state)
    parameters = list(trained_parameters(module).values())
    (port,) = free_ports(1)
    meeting_place = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]  # torch's own
    manager = Manager(
        pg=ProcessGroupGloo(timeout=PATIENCE),
        load_state_dict=None,
        state_dict=None,
        min_replica_size=1,
        use_async_quorum=False,
        timeout=PATIENCE,
        quorum_timeout=PATIENCE,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica_{member}",
        hostname="127.0.0.1",
    )
    outer = spec.sync.outer_optimizer
    merging = torch.optim.SGD(parameters, lr=outer.learning_rate, momentum=outer.momentum, nesterov=outer.momentum > 0)
    # DiLoCo counts the steps of an optimizer. The trainer has its own, so this one changes nothing.
    counted = torch.optim.SGD(parameters, lr=0.0)
    tokens_a_merge = spec.sync.interval * spec.training.batch_size * spec.training.sequence_length
    tokens = 0
    with (
        DiLoCo(manager, [module], counted, merging, sync_every=spec.sync.interval, pin_memory=False),
        (out / f"steps-{member}-{os.getpid()}.jsonl").open("w", buffering=1) as log,
    ):
        while tokens < spec.training.tokens:
            result = trainer.step(tokens / spec.training.tokens)
            computing = result.seconds + sleep_for_speed(result.seconds, speed, time.sleep)
            log.write(json.dumps({"at": time.time(), "tokens": result.tokens, "computing": computing}) + "\n")
            counted.step()
            tokens = manager.batches_committed() * tokens_a_merge
            if trainer.steps % spec.training.checkpoint_every_steps == 0:
                store.save(LearnerCheckpoint(trainer.state(), {}))
    values = trainer.buffer(0)
    read_fragment(module, whole, values)
    loss = trainer.evaluate({0: values})
    aside = out / f"result-{member}.json"
    aside.write_text(json.dumps({"loss": loss, "tokens": tokens}))
    aside.replace(out / "result.json")
    manager.shutdown(wait=False)
    del meeting_place


def main() -> None:
    """Train as one replica."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--member", type=int, required=True)
    parser.add_argument("--speed", type=float, required=True)
    parser.add_argument("--lighthouse", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train(arguments.job, arguments.out, arguments.member, arguments.speed, arguments.lighthouse)


if __name__ == "__main__":
    main()
