"""A learner of two and three processes against one process: same model, batches and optimizer, on gloo.

Each makes the same steps. After every few of them a fragment is read out and another written, as when one is handed in
and one received. Each process has one thread. Seconds are the first process's, medians; with more processes than cores
they say little. Memory is the bytes of tensors that a process holds after the last step.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from diloco.learner.data.opening import open_data
from diloco.learner.training.trainer import InnerTrainer
from diloco.model.build import build_model
from diloco.model.fragments import layout_of
from diloco.spec import JobSpec, parse_job
from support.job import manifest
from support.report import Ratio, Ratios, command, write_report
from testbed.units import own_bytes, unit_of

FRAGMENTS: Final = 6
EVERY: Final = 4
"""Steps from one fragment to the next."""
EVALUATE_EVERY: Final = 50
RANKS: Final = (1, 2, 3)


def job() -> JobSpec:
    """The job, of one learner."""
    training = {"tokens": 10**9, "sequenceLength": 32, "batchSize": 6, "evaluation": {"sequences": 24}}
    plain = manifest("units", {"here": 1}, training=training, sync={"fragments": FRAGMENTS})
    return parse_job(json.dumps(plain)).spec


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
    return {**medians, "losses": losses, "means": means, "not_as_received": wrong}


def run_case(ranks: int, folder: Path, steps: int) -> dict[str, Any]:
    """What so many processes found."""
    folder.mkdir()
    spec = job()
    if ranks == 1:
        module = build_model(spec)
        data = open_data(spec, spec.learner_ids[0])
        alone = InnerTrainer(spec, module, layout_of(module, FRAGMENTS), data, torch.device("cpu"))
        found, held = train(alone, steps, folder), [own_bytes()]
        layout = alone.layout
    else:
        with unit_of(ranks, folder) as unit:
            with unit.trainer(spec) as trainer:
                found, layout = train(trainer, steps, folder), trainer.layout
            held = [own_bytes(), *unit.held_bytes()]
    numel = sum(fragment.numel for fragment in layout.fragments)
    return {**found, "parameters": numel, "held_bytes": held[0], "held_bytes_others": max(held[1:], default=0)}


def worst(ours: Path, alone: Path) -> float:
    """The largest difference of an outer gradient's norm, over the norm."""
    pairs = [(np.load(one), np.load(ours / one.name)) for one in alone.glob("*.npy")]
    return max(float(np.linalg.norm(other - one) / np.linalg.norm(one)) for one, other in pairs)


def main() -> None:
    """Run the cases and report."""
    parser = command(__doc__)
    parser.add_argument("--steps", type=int, default=200, help="steps of each case (200)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
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
    ratios = {name: ratio._replace(less_is_better=True) for name, ratio in ratios.items()}
    write_report(arguments.json, "units", ratios, {"cases": rows})


if __name__ == "__main__":
    main()
