"""Learners of several processes, for tests: the test's own process is the first, and this module, run, another."""

import gc
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from diloco.core.fragments import LayoutError
from diloco.learner.data import DataError
from diloco.learner.data.opening import open_data
from diloco.learner.training.optimizer import OptimizerError
from diloco.learner.training.trainer import InnerTrainer
from diloco.learner.unit.checkpoints import RankCheckpoints
from diloco.learner.unit.follower import follow
from diloco.learner.unit.rank import Rank
from diloco.learner.unit.sharding import parted_model
from diloco.learner.unit.unit_trainer import UnitTrainer
from diloco.learner.unit.world import World
from diloco.model import ModelError
from diloco.model.build import blank_model, build_model
from diloco.model.fragments import layout_of
from diloco.model.sharded import part
from diloco.spec import JobSpec
from tests.support.small_job import small_job
from tests.support.small_learner import trainer_of

TRAINING: Final[dict[str, Any]] = {
    "tokens": 100_000,
    "sequenceLength": 16,
    "batchSize": 6,
    "optimizer": {"learningRate": 3e-3, "warmupSteps": 4},
    "evaluation": {"sequences": 7},
}


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


def held_bytes(world: World) -> list[int]:
    """In all processes: the bytes of each one's tensors."""
    gc.collect()
    with warnings.catch_warnings(action="ignore"):  # of what torch keeps under an old name
        found = [one for one in gc.get_objects() if isinstance(one, Tensor) and not one.is_meta]
    storages = [part(one).untyped_storage() for one in found]
    mine = sum({one.data_ptr(): one.nbytes() for one in storages}.values())
    counts = torch.zeros(world.ranks, dtype=torch.int64)
    counts[world.rank] = mine
    torch.distributed.all_reduce(counts)
    return [int(one) for one in counts]


def follow_jobs(world: World, checkpoints: Path) -> None:
    """In another process than the first: follow it through one job after the other."""
    while job := heard(world):
        with suppress(DataError, LayoutError, ModelError, OptimizerError):
            rank = rank_of(json.loads(job), world, None)
            follow(rank, RankCheckpoints(checkpoints, rank.inner, world, world.ranks))
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
    def trainer(self, job: JobSpec, parallelism: str = "FSDP") -> Iterator[UnitTrainer]:
        """The learner's trainer; the processes wait again afterwards."""
        plain = _of_one(job, {"processesPerNode": self.world.ranks, "parallelism": parallelism})
        heard(self.world, json.dumps(plain))
        spec = JobSpec.model_validate(plain)
        source = build_model(spec)
        trainer = UnitTrainer(spec, source, rank_of(plain, self.world, source))
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
            subprocess.Popen([sys.executable, "-m", __spec__.name, store, str(rank), str(ranks)])
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


def alone(job: JobSpec) -> InnerTrainer:
    """The trainer of the job's learner, if it is one process."""
    return trainer_of(JobSpec.model_validate(_of_one(job, {})))


def _of_one(job: JobSpec, pool: Mapping[str, Any]) -> dict[str, Any]:
    pools = [{"name": "cpu", "learners": 1, **pool}]
    plain = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return plain | {"regions": [{"name": "here", "pools": pools}]}


def trained(trainer: InnerTrainer, steps: int, every: int = 2) -> dict[str, list[Any]]:
    """What comes of some steps, with a fragment handed in and received after ``every`` of them, and evaluations."""
    seen: dict[str, list[Any]] = {"losses": [], "norms": [], "deltas": [], "means": [], "received": []}
    for step in range(steps):
        made = trainer.step(step / steps)
        seen["losses"].append(made.loss)
        seen["norms"].append(made.grad_norm)
        if step % every == every - 1:
            fragment = step // every % len(trainer.layout.fragments)
            capture = trainer.capture(fragment)
            values: Tensor = capture._anchor - 0.7 * capture.delta
            seen["deltas"].append(capture.delta)
            trainer.apply(fragment, step, values)
            seen["received"].append(not trainer.capture(fragment).delta.any())
            seen["means"].append((trainer.evaluate(), dict(trainer.metrics)))
    return seen


def write_documents(folder: Path) -> Path:
    """The folder, with documents of several lengths."""
    folder.mkdir(exist_ok=True)
    for number in range(100):
        (folder / f"{number}.txt").write_text("ab" * (1 + number * 7 % 13))
    return folder


def job_of(text: Path, *, mask: bool = False, training: dict[str, Any] | None = None, **changes: Any) -> JobSpec:
    data = {"text": {"path": str(text)}, "holdoutFraction": 0.1, "documentMask": mask}
    if "task" in changes:
        data = {"holdoutFraction": 0.1}
    plain = {"data": data, "training": TRAINING | (training or {}), "sync": {"fragments": 4}} | changes
    return small_job(None, 1, **plain)


def check_alike(unit: Unit, job: JobSpec, parallelism: str = "FSDP") -> None:
    """The same losses, norms, outer gradients and evaluations, and what is received is there as it was sent.

    Adam's steps, of 3e-3 here, make much of rounding where a gradient is near 0.
    """
    wanted = trained(alone(job), 8)
    with unit.trainer(job, parallelism) as trainer:
        made = trained(trainer, 8)
    assert all(made["received"])
    for one, other in zip(made["deltas"], wanted["deltas"], strict=True):
        assert float((one - other).abs().max()) < 3e-6
    for what in ("losses", "norms"):
        assert made[what] == pytest.approx(wanted[what], rel=1e-5)
    for (mean, metrics), (other_mean, others) in zip(made["means"], wanted["means"], strict=True):
        assert mean == pytest.approx(other_mean, rel=1e-5)
        assert metrics == pytest.approx(others, rel=1e-5)


if __name__ == "__main__":
    torch.set_num_threads(1)
    follow_jobs(world_of(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), Path(sys.argv[1]).parent)
