"""A learner that goes on with other numbers of processes: this module, run with FOLDER, and forks of it.

The first writes to ``FOLDER/result.json`` a digest of all moments as restored, and as saved, of each start.
"""

import json
import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import torch
import torch._dynamo  # which FSDP loads: here for all forks
from torch.distributed import FileStore  # type: ignore[attr-defined]  # it is there, and documented
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from diloco.learner.checkpoint import CheckpointIdentity, CheckpointStore, LearnerCheckpoint
from diloco.learner.data.opening import open_data
from diloco.learner.resume import Resume
from diloco.learner.training.optimizer import NamedOptimizer
from diloco.learner.training.trainer import InnerTrainer
from diloco.learner.unit.checkpoints import RankCheckpoints
from diloco.learner.unit.follower import follow
from diloco.learner.unit.orders import Op, Order
from diloco.learner.unit.rank import Rank
from diloco.learner.unit.sharding import parted_model
from diloco.learner.unit.unit_trainer import UnitTrainer
from diloco.learner.unit.world import World
from diloco.model.build import blank_model, build_model
from diloco.model.fragments import layout_of
from diloco.model.sharded import place_of, whole
from diloco.spec import JobSpec
from tests.support.small_job import small_job

STARTS: Final = ((2, "FSDP"), (3, "FSDP"), (1, "FSDP"), (2, "DDP"))
"""Processes of each start, and how they hold the model."""
LEARNER: Final = "here/cpu/0"
CPU: Final = torch.device("cpu")


def job_of(folder: Path, ranks: int, parallelism: str) -> JobSpec:
    pool = {"name": "cpu", "learners": 1, "processesPerNode": ranks, "parallelism": parallelism}
    return small_job(
        folder / "text.txt",
        training={"tokens": 100_000, "sequenceLength": 16, "batchSize": 6, "optimizer": {"type": "Muon"}},
        regions=[{"name": "here", "pools": [pool]}],
    )


def digest(optimizer: Any) -> str:
    """Of all moments and counts; every process calls it."""
    assert isinstance(optimizer, NamedOptimizer)
    found = sha256()
    for part in optimizer._parts.values():
        for name, parameter in part.parameters.items():
            for kind, tensor in sorted(part.optimizer.state[parameter].items()):
                found.update(f"{kind} {name}".encode() + whole(tensor).numpy().tobytes())
    return found.hexdigest()


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


class Started:
    """One start of one process."""

    def __init__(self, folder: Path, number: int, rank: int) -> None:
        ranks, parallelism = STARTS[number]
        spec = job_of(folder, ranks, parallelism)
        self._folder = folder / "checkpoints"
        data = open_data(spec, LEARNER)
        source = build_model(spec) if rank == 0 else None
        layout = layout_of(source or blank_model(spec), spec.sync.fragments)
        self._trainer: InnerTrainer | None = None
        if ranks == 1:
            assert source is not None
            self._trainer = InnerTrainer(spec, source, layout, data, CPU)
            self._inner, self._world = self._trainer._inner, None
        else:
            store = FileStore(str(folder / f"start-{number}"), ranks)
            self._world = World(store, rank, ranks, CPU)
            parted = parted_model(spec, spec.pool_of(LEARNER), self._world, source)
            self._rank = Rank(spec, parted, layout, data, self._world)
            self._inner = self._rank.inner
            check_places(self._world.mesh)
            if source is not None:
                self._trainer = UnitTrainer(spec, source, self._rank)
        if self._trainer is not None:
            identity = CheckpointIdentity("job", LEARNER, layout.digest, self._trainer.optimizer_identity)
            self._store = CheckpointStore(self._folder, identity, self._trainer.others)

    def follows(self) -> None:
        """In another process than the first: do as it does, until it has the others end."""
        follow(self._rank, RankCheckpoints(self._folder, self._inner, self._rank.world, self._rank.world.ranks))

    def runs(self) -> dict[str, object]:
        """Restore, train and save."""
        trainer = self._trainer
        if trainer is not None:
            Resume(trainer, None, self._store.load()).take_up("")
        self._ended()
        steps, restored = self._inner.optimizer.steps, digest(self._inner.optimizer)
        if trainer is not None:
            trainer.step(0.0)
            self._store.save(LearnerCheckpoint(trainer.state(), {}))
        self._ended()
        saved = digest(self._inner.optimizer)
        if self._world is not None:
            self._world.leave()
        return {"steps": steps, "restored": restored, "saved": saved}

    def _ended(self) -> None:
        if self._trainer is None:
            self.follows()
        elif isinstance(self._trainer, UnitTrainer):
            self._rank.world.tell(Order(Op.END))


def run(rank: int, folder: Path) -> list[dict[str, object]]:
    torch.set_num_threads(1)
    return [Started(folder, number, rank).runs() for number, (ranks, _) in enumerate(STARTS) if rank < ranks]


def main(folder: Path) -> int:
    """Run all; returns how many of the others failed, or, in one of them, 0."""
    others = []
    for rank in range(1, max(ranks for ranks, _ in STARTS)):
        child = os.fork()
        if not child:
            run(rank, folder)
            return 0
        others.append(child)
    (folder / "result.json").write_text(json.dumps(run(0, folder)))
    return sum(os.waitpid(child, 0)[1] != 0 for child in others)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
