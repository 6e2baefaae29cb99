"""Learners of several processes: the caller's own process is the first, and this module, run, another."""

import gc
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import Tensor, nn

from diloco.core.fragments import LayoutError
from diloco.learner.data import DataError
from diloco.learner.data.opening import open_data
from diloco.learner.training.optimizers.optimizer import OptimizerError
from diloco.learner.unit.checkpoints import RankCheckpoints
from diloco.learner.unit.collectives.world import World
from diloco.learner.unit.follower import follow
from diloco.learner.unit.rank import Rank
from diloco.learner.unit.sharding import parted_model
from diloco.learner.unit.unit_trainer import UnitTrainer
from diloco.model import ModelError
from diloco.model.build import blank_model, build_model
from diloco.model.fragments import layout_of
from diloco.model.sharded import part
from diloco.spec import JobSpec

_ROOT = Path(__file__).parents[1]


def heard(world: World, job: str = "") -> str:
    """In all processes: the job that the first one gives; empty at the end."""
    size = torch.tensor([len(job)])
    world.share(size)
    text = torch.frombuffer(bytearray(job.ljust(int(size) + 1).encode()), dtype=torch.uint8)
    world.share(text)
    return bytes(text.tolist()).decode().rstrip()


def rank_of(job: Mapping[str, Any], world: World, source: nn.Module | None) -> Rank:
    """This process's part of a job's only learner."""
    spec = JobSpec.model_validate(job)
    layout = layout_of(source or blank_model(spec), spec.sync.fragments)
    data = open_data(spec, spec.learner_ids[0])
    return Rank(spec, parted_model(spec, spec.regions[0].pools[0], world, source), layout, data, world)


def world_of(store: str, rank: int, ranks: int) -> World:
    """Of processes on this machine, that meet at a file."""
    files = torch.distributed.FileStore(store, ranks)  # type: ignore[attr-defined]  # it is there, and documented
    return World(files, rank, ranks, torch.device("cpu"))


def own_bytes() -> int:
    """Of this process's tensors, each memory once."""
    gc.collect()
    with warnings.catch_warnings(action="ignore"):  # of what torch keeps under an old name
        found = [one for one in gc.get_objects() if isinstance(one, Tensor) and not one.is_meta]
    storages = [part(one).untyped_storage() for one in found if part(one).layout == torch.strided]
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


def held_bytes(world: World) -> list[int]:
    """In all processes: the bytes of each one's tensors."""
    counts = torch.zeros(world.ranks, dtype=torch.int64)
    counts[world.rank] = own_bytes()
    torch.distributed.all_reduce(counts)
    return counts.tolist()


def follow_jobs(world: World, checkpoints: Path) -> None:
    """In another process than the first: follow it through one job after the other."""
    while job := heard(world):
        with suppress(DataError, LayoutError, ModelError, OptimizerError):
            told = json.loads(job)
            rank = rank_of(told["job"], world, None)
            rank.inner._late = told["late"]  # as on a device
            follow(rank, RankCheckpoints(checkpoints, rank.inner.optimizer, world, world.ranks))
            held_bytes(world)
    world.leave()


class Unit:
    """Processes that wait for a job, until the end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.held_bytes: list[int] = []
        """Of each process, at the end of the latest job."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        if failed is None:
            heard(self.world)
            self.world.leave()

    @contextmanager
    def trainer(self, job: JobSpec, parallelism: str = "FSDP", *, late: bool = False) -> Iterator[UnitTrainer]:
        """The learner's trainer; the processes wait again afterwards. ``late``: a step's numbers are, as on a GPU."""
        nodes = 2 if parallelism == "HSDP" else 1
        pool = {"processesPerNode": self.world.ranks // nodes, "nodesPerLearner": nodes, "parallelism": parallelism}
        plain = of_one(job, pool)
        heard(self.world, json.dumps({"job": plain, "late": late}))
        spec = JobSpec.model_validate(plain)
        source = build_model(spec)
        trainer = UnitTrainer(spec, source, rank_of(plain, self.world, source))
        trainer._inner._late = late  # as on a device
        del source
        try:
            yield trainer
        finally:
            trainer.end()
            self.held_bytes = held_bytes(self.world)


@contextmanager
def unit_of(ranks: int, folder: Path) -> Iterator[Unit]:
    """So many processes, connected over the loopback interface."""
    store = str(folder / "store")
    with patch.dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"):
        others = [
            subprocess.Popen([sys.executable, "-m", "testbed.units", store, str(rank), str(ranks)], cwd=_ROOT)
            for rank in range(1, ranks)
        ]
        try:
            with Unit(world_of(store, 0, ranks)) as unit:
                yield unit
            assert [other.wait() for other in others] == [0] * len(others)
        finally:
            for other in others:
                other.kill()
                other.wait()


def of_one(job: JobSpec, pool: Mapping[str, Any]) -> dict[str, Any]:
    """The job with one learner, of such a pool."""
    pools = [{"name": "cpu", "learners": 1, **pool}]
    plain = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return plain | {"regions": [{"name": "here", "pools": pools}]}


if __name__ == "__main__":
    torch.set_num_threads(1)
    follow_jobs(world_of(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), Path(sys.argv[1]).parent)
