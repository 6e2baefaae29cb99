"""One replica of torchft's DiLoCo, for the benchmark `goodput`.

It trains with the learner's own trainer, data and learning-rate schedule, and has `sync.interval` inner steps between
two merges of the whole model. As with a learner, its inner optimizer and its place in the data come from its own
checkpoint. The model comes from the others at its first merge, as torchft does it; its steps until then are lost. It
needs torchft, in an environment of its own (`groups.py`).

    torchft_lighthouse --min_replicas 1 --bind 127.0.0.1:29510
    python -m support.goodput.torchft_replica JOB.yaml OUT --member 0 --lighthouse http://127.0.0.1:29510
"""

import argparse
import datetime as dt
import inspect
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torchft.local_sgd import DiLoCo  # type: ignore[import-not-found]  # it has an environment of its own
from torchft.manager import Manager  # type: ignore[import-not-found]
from torchft.process_group import ProcessGroupGloo  # type: ignore[import-not-found]

from diloco.learner.checkpoint import LearnerCheckpoint
from diloco.local.launch import free_ports
from diloco.model.fragments import trained_parameters
from diloco.spec.outer_choice import OuterChoice
from support.trainer import Trained, note_step, steps_file

PATIENCE = dt.timedelta(seconds=10)
QUORUM_PATIENCE = dt.timedelta(seconds=30)


def train(job_file: Path, out: Path, member: int, lighthouse: str) -> None:
    """Train until the replicas together have merged the budget; the first to see it writes the result."""
    trained = Trained.by(member, job_file, out / f"checkpoints-{member}", str(member))
    spec, module, trainer, store = trained.spec, trained.module, trained.trainer, trained.store
    if (saved := store.load()) is not None:
        trainer.load_state(saved.state)
    parameters = list(trained_parameters(module).values())
    (port,) = free_ports(1)
    meeting_place = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]  # torch's own
    manager = Manager(
        pg=ProcessGroupGloo(timeout=PATIENCE),
        load_state_dict=module.load_state_dict,
        state_dict=module.state_dict,
        min_replica_size=1,
        use_async_quorum=False,
        timeout=PATIENCE,
        quorum_timeout=QUORUM_PATIENCE,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica_{member}",
        hostname="127.0.0.1",
    )
    # As learners do, it starts without torch's compiler, which the first step would load for gradients through it.
    torch.optim.SGD.step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))  # type: ignore[method-assign]
    outer = OuterChoice.of(spec).optimizer
    merging = torch.optim.SGD(parameters, lr=outer.learning_rate, momentum=outer.momentum, nesterov=outer.momentum > 0)
    # DiLoCo counts the steps of an optimizer. The trainer has its own, so this one changes nothing.
    counted = torch.optim.SGD(parameters, lr=0.0)
    tokens_a_merge = spec.sync.interval * spec.training.batch_size * spec.training.sequence_length
    tokens = 0
    with (
        DiLoCo(manager, [module], counted, merging, sync_every=spec.sync.interval, pin_memory=False),
        steps_file(out, member) as log,
    ):
        while tokens < spec.training.tokens:
            result = trainer.step(tokens / spec.training.tokens)
            note_step(log, result.tokens, result.seconds)
            counted.step()
            tokens = manager.batches_committed() * tokens_a_merge
            if trainer.steps % spec.training.checkpoint_every_steps == 0:
                store.save(LearnerCheckpoint(trainer.state(), {}))
    aside = out / f"result-{member}.json"
    aside.write_text(json.dumps({"loss": trained.loss(), "tokens": tokens}))
    aside.replace(out / "result.json")
    manager.shutdown(wait=False)
    del meeting_place


def main() -> None:
    """Train as one replica."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--member", type=int, required=True)
    parser.add_argument("--lighthouse", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train(arguments.job, arguments.out, arguments.member, arguments.lighthouse)


if __name__ == "__main__":
    main()
