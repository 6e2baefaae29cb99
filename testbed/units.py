"""Learners of several processes: the caller's own process is the first, and this module, run, another."""

import gc
import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from diloco.core.fragments import LayoutError
from diloco.learner.data import DataError
from diloco.learner.data.opening import open_data
from diloco.learner.training.optimizers.optimizer import OptimizerError
from diloco.learner.unit.checkpoints import RankCheckpoints
from diloco.learner.unit.collectives import world as worlds
from diloco.learner.unit.collectives.world import World
from diloco.learner.unit.follower import follow
from diloco.learner.unit.joining import await_others, joined, store_at
from diloco.learner.unit.rank import Rank
from diloco.learner.unit.sharding import parted_model
from diloco.learner.unit.unit_trainer import UnitTrainer
from diloco.model import ModelError
from diloco.model.build import blank_model, build_model
from diloco.model.fragments import layout_of
from diloco.model.sharded import part
from diloco.runtime.process.die_with_parent import die_with_parent
from diloco.spec import JobSpec
from testbed.fork_server import Popen

_ROOT: Final = Path(__file__).parents[1]
_COUNT: Final = "count"
"""Told instead of a job: how many bytes does each process hold?"""
_REFUSALS: Final = (DataError, LayoutError, ModelError, OptimizerError)
_LIMIT: Final = timedelta(seconds=120)
"""How long the first process waits for the others at a time: less than a test may take, whose end cannot end a wait."""
_END_SECONDS: Final = 60.0


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
    return joined(store_at(store, ranks), rank, ranks, torch.device("cpu"), {})


def own_bytes() -> int:
    """Of this process's tensors, each memory once."""
    gc.collect()
    with warnings.catch_warnings(action="ignore"):  # of what torch keeps under an old name
        # By the true type: the class that an object gives may be looked up in one that is gone.
        found = [part(one) for one in gc.get_objects() if issubclass(type(one), Tensor)]
    storages = [one.untyped_storage() for one in found if one.layout == torch.strided]
    # A fake tensor says the device that it stands for; its storage has the one without memory.
    return sum({one.data_ptr(): one.nbytes() for one in storages if one.device.type != "meta"}.values())


def check_refusals(world: World, *, refused: bool) -> None:
    """In all processes: either all refuse a job or none does.

    Raises:
        RuntimeError: only some do.
    """
    refusing = [rank for rank, (one,) in enumerate(world.all_have([refused])) if one]
    if 0 < len(refusing) < world.ranks:
        raise RuntimeError(f"of {world.ranks} processes, only {refusing} refuse the job")


def follow_jobs(world: World, checkpoints: Path) -> None:
    """In another process than the first: follow it through one job after the other."""
    while job := heard(world):
        if job == _COUNT:
            world.all_have([own_bytes()])
            continue
        told = json.loads(job)
        try:
            rank = rank_of(told["job"], world, None)
        except _REFUSALS:
            check_refusals(world, refused=True)
            continue
        check_refusals(world, refused=False)
        rank.inner._late = told["late"]  # as on a device
        follow(rank, RankCheckpoints(checkpoints, rank.inner.optimizer, world, world.ranks))
    world.leave()


class Unit:
    """The first process of some that wait for a job. A job that fails leaves them where they are."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.waiting = True
        """Whether the others wait for a job, or for the end."""

    @contextmanager
    def trainer(self, job: JobSpec, parallelism: str = "FSDP", *, late: bool = False) -> Iterator[UnitTrainer]:
        """The learner's trainer; the processes wait again afterwards. ``late``: a step's numbers are, as on a GPU."""
        nodes = 2 if parallelism == "HSDP" else 1
        pool = {"processesPerNode": self.world.ranks // nodes, "nodesPerLearner": nodes, "parallelism": parallelism}
        plain = of_one(job, pool)
        self.waiting = False
        heard(self.world, json.dumps({"job": plain, "late": late}))
        try:
            spec = JobSpec.model_validate(plain)
            source = build_model(spec)
            trainer = UnitTrainer(spec, source, rank_of(plain, self.world, source))
        except _REFUSALS:
            check_refusals(self.world, refused=True)
            self.waiting = True
            raise
        check_refusals(self.world, refused=False)
        trainer._inner._late = late  # as on a device
        del source
        yield trainer
        trainer.end()
        self.waiting = True

    def held_bytes(self) -> list[int]:
        """Of each other process's tensors, those of the latest job among them."""
        heard(self.world, _COUNT)
        return [held for (held,) in self.world.all_have([0])[1:]]

    def leave(self) -> None:
        """Have all end that wait."""
        heard(self.world)
        self.world.leave()


class StartedUnit:
    """A `Unit` whose other processes are started for a job if there are none: first, and after a job that failed."""

    def __init__(self, ranks: int, folder: Path) -> None:
        self._ranks, self._folder, self._starts = ranks, folder, 0
        self._others: list[Popen] = []
        self._unit: Unit | None = None

    @contextmanager
    def trainer(self, job: JobSpec, parallelism: str = "FSDP", *, late: bool = False) -> Iterator[UnitTrainer]:
        """See `Unit`. Processes that do not wait afterwards are killed."""
        limits = (
            patch.object(worlds, "NO_LIMIT", _LIMIT),
            patch.object(dist.distributed_c10d, "default_pg_timeout", _LIMIT),
        )
        with limits[0], limits[1], patch.dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"):
            try:
                if self._unit is None:
                    self._unit = Unit(self._start())
                with self._unit.trainer(job, parallelism, late=late) as trainer:
                    yield trainer
            finally:
                if self._unit is None or not self._unit.waiting:
                    self._kill()

    def held_bytes(self) -> list[int]:
        """See `Unit`."""
        assert self._unit is not None, "a job has ended well"
        return self._unit.held_bytes()

    def end(self) -> None:
        """End the processes.

        Raises:
            AssertionError, TimeoutExpired: they do not end as they should.
        """
        try:
            if self._unit is not None:
                self._unit.leave()
                assert [other.wait(_END_SECONDS) for other in self._others] == [0] * len(self._others)
        finally:
            self._kill()

    def _start(self) -> World:
        self._starts += 1
        path = str(self._folder / f"store-{self._starts}")
        command = [sys.executable, "-m", "testbed.units", path, "RANK", str(self._ranks)]
        self._others = []
        for rank in range(1, self._ranks):
            command[4] = str(rank)
            self._others.append(Popen(command, cwd=_ROOT))
        await_others(store_at(path, self._ranks), self._ranks, self._one_has_ended)
        return world_of(path, 0, self._ranks)

    def _one_has_ended(self) -> bool:
        return any(other.poll() is not None for other in self._others)

    def _kill(self) -> None:
        for other in self._others:
            other.kill()
            other.wait()
        self._others, self._unit = [], None
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def unit_of(ranks: int, folder: Path) -> Iterator[StartedUnit]:
    """So many processes, connected over the loopback interface."""
    unit = StartedUnit(ranks, folder)
    try:
        yield unit
    finally:
        unit.end()


def of_one(job: JobSpec, pool: Mapping[str, Any]) -> dict[str, Any]:
    """The job with one learner, of such a pool."""
    pools = [{"name": "cpu", "learners": 1, **pool}]
    plain = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return plain | {"regions": [{"name": "here", "pools": pools}]}


if __name__ == "__main__":
    die_with_parent(os.getppid())
    torch.set_num_threads(1)
    follow_jobs(world_of(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), Path(sys.argv[1]).parent)
