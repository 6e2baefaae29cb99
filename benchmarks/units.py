"""A learner of two and three processes against one process: same model, batches and optimizer, on gloo.

Each makes the same steps. After every few of them a fragment is read out and another written, as when one is handed in
and one received. Each process has one thread. Seconds are the first process's, medians; with more processes than cores
they say little. Memory is the bytes of tensors that a process holds after the last step.
"""

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from diloco.learner.data.opening import open_data
from diloco.learner.training.trainer import InnerTrainer
from diloco.learner.unit.checkpoints import RankCheckpoints
from diloco.learner.unit.follower import follow
from diloco.learner.unit.rank import Rank
from diloco.learner.unit.sharding import parted_model
from diloco.learner.unit.unit_trainer import UnitTrainer
from diloco.learner.unit.world import World
from diloco.model.build import blank_model, build_model
from diloco.model.fragments import layout_of
from diloco.model.sharded import part
from diloco.spec import JobSpec, parse_job
from support.job import manifest, python_path
from support.report import Ratio, Ratios, command, write_report

FRAGMENTS: Final = 6
EVERY: Final = 4
"""Steps from one fragment to the next."""
EVALUATE_EVERY: Final = 50
RANKS: Final = (1, 2, 3)


def job_of(ranks: int) -> JobSpec:
    """The job, of one learner of so many processes."""
    training = {"tokens": 10**9, "sequenceLength": 32, "batchSize": 6, "evaluation": {"sequences": 24}}
    job = manifest("units", {"here": 1}, training=training, sync={"fragments": FRAGMENTS})
    job["spec"]["regions"][0]["pools"][0]["processesPerNode"] = ranks
    return parse_job(json.dumps(job)).spec


def held_bytes() -> int:
    """Of this process's tensors, each memory once."""
    gc.collect()
    with warnings.catch_warnings(action="ignore"):  # of what torch keeps under an old name
        found = [one for one in gc.get_objects() if isinstance(one, Tensor) and not one.is_meta]
    storages = [part(one).untyped_storage() for one in found]
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


def world_of(store: str, rank: int, ranks: int) -> World:
    """The learner's processes, connected."""
    files = torch.distributed.FileStore(store, ranks)  # type: ignore[attr-defined]  # it is there, and documented
    return World(files, rank, ranks, torch.device("cpu"))


def trainer_of(spec: JobSpec, ranks: int, store: str) -> tuple[InnerTrainer, World | None]:
    """The learner's trainer, in the first process."""
    source, data = build_model(spec), open_data(spec, spec.learner_ids[0])
    layout = layout_of(source, FRAGMENTS)
    if ranks == 1:
        return InnerTrainer(spec, source, layout, data, torch.device("cpu")), None
    world = world_of(store, 0, ranks)
    parted = parted_model(spec, spec.regions[0].pools[0], world, source)
    return UnitTrainer(spec, source, Rank(spec, parted, layout, data, world)), world


def follower(spec: JobSpec, place: int, ranks: int, store: str) -> None:
    """Another process."""
    world = world_of(store, place, ranks)
    parted = parted_model(spec, spec.regions[0].pools[0], world, None)
    data = open_data(spec, spec.learner_ids[0])
    rank = Rank(spec, parted, layout_of(blank_model(spec), FRAGMENTS), data, world)
    follow(rank, RankCheckpoints(Path(store).parent, rank.inner, world, ranks))
    Path(f"{store}-held-{place}").write_text(str(held_bytes()))
    world.leave()


def train(trainer: InnerTrainer, steps: int, folder: Path) -> dict[str, Any]:
    """Make the steps; outer gradients go into the folder."""
    seconds: dict[str, list[float]] = {"step": [], "read": [], "write": []}
    losses, means, wrong = [], [], 0
    for step in range(steps):
        began = time.perf_counter()
        losses.append(trainer.step(step / steps).loss)
        seconds["step"].append(time.perf_counter() - began)
        if step % EVERY == EVERY - 1:
            fragment = step // EVERY % FRAGMENTS
            began = time.perf_counter()
            capture = trainer.capture(fragment)
            seconds["read"].append(time.perf_counter() - began)
            values = capture._anchor - 0.7 * capture.delta  # noqa: SLF001  # as an outer step makes them
            np.save(folder / f"{trainer.layout.fragments[fragment].index}-{step}.npy", capture.delta.numpy())
            began = time.perf_counter()
            trainer.apply(fragment, step, values)
            seconds["write"].append(time.perf_counter() - began)
            wrong += int(torch.count_nonzero(trainer.capture(fragment).delta))
        if step % EVALUATE_EVERY == EVALUATE_EVERY - 1:
            means.append(trainer.evaluate())
    medians = {f"{what}_seconds": statistics.median(each) for what, each in seconds.items()}
    return {**medians, "losses": losses, "means": means, "not_as_received": wrong, "held_bytes": held_bytes()}


def process(place: int, ranks: int, folder: Path, steps: int) -> None:
    """One process of a case; it writes what it found into the folder."""
    torch.set_num_threads(1)
    spec, store = job_of(ranks), str(folder / "store")
    if place:
        follower(spec, place, ranks, store)
        return
    trainer, world = trainer_of(spec, ranks, store)
    found = train(trainer, steps, folder)
    found["parameters"] = sum(fragment.numel for fragment in trainer.layout.fragments)
    if isinstance(trainer, UnitTrainer) and world is not None:
        trainer.end()
        world.leave()
    (folder / "found.json").write_text(json.dumps(found))


def run_case(ranks: int, folder: Path, steps: int) -> dict[str, Any]:
    """What the first of so many processes found."""
    folder.mkdir()
    words = [sys.executable, __file__, "--steps", str(steps), "--folder", str(folder)]
    environment = {**os.environ, "PYTHONPATH": python_path(), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen([*words, "--place", str(place), "--ranks", str(ranks)], env=environment)
        for place in range(ranks)
    ]
    if any(list(map(subprocess.Popen.wait, started))):
        raise SystemExit(f"a process of {ranks} failed")
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    others = [int(one.read_text()) for one in folder.glob("store-held-*")]
    return {**found, "held_bytes_others": max(others, default=0)}


def worst(ours: Path, alone: Path) -> float:
    """The largest difference of an outer gradient's norm, over the norm."""
    pairs = [(np.load(one), np.load(ours / one.name)) for one in alone.glob("*.npy")]
    return max(float(np.linalg.norm(other - one) / np.linalg.norm(one)) for one, other in pairs)


def main() -> None:
    """Run the cases and report."""
    parser = command(__doc__)
    parser.add_argument("--steps", type=int, default=200, help="steps of each case (200)")
    parser.add_argument("--place", type=int, help="used by the benchmark itself, as are the next two")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.place is not None:
        process(arguments.place, arguments.ranks, arguments.folder, arguments.steps)
        return
    ratios: Ratios = {}
    rows = []
    with tempfile.TemporaryDirectory() as made:
        cases = {ranks: run_case(ranks, Path(made) / str(ranks), arguments.steps) for ranks in RANKS}
        one = cases[1]
        for ranks, case in cases.items():
            numel = case.pop("parameters")
            losses, means = (np.array(case.pop(what)) for what in ("losses", "means"))
            for what in ("held_bytes", "held_bytes_others"):
                case[f"{what}_a_parameter"] = case.pop(what) / numel
            for what in ("read", "write"):
                case[f"{what}_nanoseconds_a_parameter"] = 1e9 * case.pop(f"{what}_seconds") * FRAGMENTS / numel
            rows.append({"processes": ranks, **case})
            if ranks == 1:
                alone_losses, alone_means = losses, means
                continue
            waited = (case["read_nanoseconds_a_parameter"] + case["write_nanoseconds_a_parameter"]) * numel / FRAGMENTS
            ratios |= {
                f"{ranks} waited": Ratio(
                    waited / 1e9 / EVERY / case["step_seconds"], "the steps between two fragments"
                ),
                f"{ranks} memory of another": Ratio(
                    case["held_bytes_others_a_parameter"] / one["held_bytes_a_parameter"], "one process's tensors"
                ),
                f"{ranks} outer gradient": Ratio(worst(Path(made) / str(ranks), Path(made) / "1"), "its norm, alone"),
                f"{ranks} loss": Ratio(float(np.max(abs(losses / alone_losses - 1))), "the loss of the step, alone"),
                f"{ranks} evaluation": Ratio(float(np.max(abs(means / alone_means - 1))), "the evaluation, alone"),
            }
    write_report(arguments.json, "units", ratios, {"cases": rows})


if __name__ == "__main__":
    main()
