"""A learner that goes on with other numbers of processes: this module, run with FOLDER, and forks of it.

The first writes to ``FOLDER/result.json`` a digest of all moments as restored, and as saved, of each start. With the
last start's processes it then trains as one process does, with uneven parts.
"""

import json
import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import torch
import torch._dynamo  # which FSDP loads: here for all forks
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from diloco.learner.checkpoint import CheckpointIdentity, CheckpointStore, LearnerCheckpoint
from diloco.learner.resume import Resume
from diloco.learner.training.trainer import InnerTrainer
from diloco.model.sharded import place_of
from diloco.spec import JobSpec
from testbed.units import Unit, follow_jobs, world_of
from tests.support.units import alone, check_alike, job_of

STARTS: Final = ((2, "FSDP"), (1, "FSDP"), (2, "DDP"), (4, "HSDP"), (3, "FSDP"))
"""Processes of each start, and how they hold the model."""


def check_places(mesh: DeviceMesh) -> None:
    """Whether a part lies where `place_of` says, however a tensor is parted."""
    values = torch.arange(20.0).view(5, 4)
    for placement in (Shard(0), Shard(1), Replicate()):
        parted = distribute_tensor(values, mesh, [placement])
        place = place_of(parted)
        box = tuple(slice(first, first + size) for first, size in zip(place.first, place.shape, strict=True))
        assert torch.equal(values[box], parted.to_local())
        assert not place.how
    other = DTensor.from_local(values, mesh, [_StridedShard(0, split_factor=2)])
    assert place_of(other).how


def store_of(trainer: InnerTrainer, folder: Path) -> CheckpointStore:
    identity = CheckpointIdentity("job", "here/cpu/0", trainer.layout.digest, trainer.optimizer_identity)
    return CheckpointStore(folder, identity, trainer.others)


def digest(job: JobSpec, folder: Path) -> str:
    """Of all moments of the newest checkpoint, which one process puts together."""
    found = store_of(alone(job), folder).load()
    assert found is not None
    tensors = sorted(found.state.tensors.items())
    return sha256(b"".join(name.encode() + one.numpy().tobytes() for name, one in tensors)).hexdigest()


def train(trainer: InnerTrainer, job: JobSpec, folder: Path) -> dict[str, Any]:
    """Restore, write that again, make a step and save."""
    store = store_of(trainer, folder)
    Resume(trainer, None, found := store.load()).take_up("")
    result: dict[str, Any] = {"steps": trainer.steps}
    if found is not None:
        store.save(LearnerCheckpoint(trainer.state(), {}))
        result["restored"] = digest(job, folder)
    trainer.step(0.0)
    store.save(LearnerCheckpoint(trainer.state(), {}))
    return result | {"saved": digest(job, folder)}


def run(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    job = job_of(folder / "text", training={"batchSize": 12, "optimizer": {"type": "Muon"}})
    results, checkpoints = [], folder / "checkpoints"
    for number, (ranks, parallelism) in enumerate(STARTS):
        if ranks == 1 and rank == 0:
            results.append(train(alone(job), job, checkpoints))
        if rank >= ranks or ranks == 1:
            continue
        world = world_of(str(folder / f"start-{number}"), rank, ranks)
        check_places(world.mesh)
        if rank:
            follow_jobs(world, checkpoints)
            continue
        unit = Unit(world)
        with unit.trainer(job, parallelism) as trainer:
            results.append(train(trainer, job, checkpoints))
        if number == len(STARTS) - 1:
            (folder / "result.json").write_text(json.dumps(results))
            check_alike(unit, job_of(folder / "text"))
        unit.leave()


def main(folder: Path) -> int:
    """Run all; returns how many of the others failed, or, in one of them, 0."""
    others = []
    for rank in range(1, max(ranks for ranks, _ in STARTS)):
        child = os.fork()
        if not child:
            run(rank, folder)
            return 0
        others.append(child)
    run(0, folder)
    return sum(os.waitpid(child, 0)[1] != 0 for child in others)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
