"""What a step of a learner of many processes moves, keeps and waits for; its losses; its time beside a plain loop's.

Counted are the first process's collectives, host reads and memory in its second step of a Llama in BF16, with fake
tensors and without the other processes (`support.step.one_rank`), so that any size runs on one core. ``--before``
counts the same with the package in another checkout, as `git worktree add FOLDER COMMIT` makes one.

Compared are the losses of one process and of several real ones, on the CPU in F32.

Timed is a step in one process, without an exchange, beside one of a plain torch loop (`support.loop_pair`): processor
time, median of pairs.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from diloco.learner.data.opening import open_data, open_source
from diloco.learner.training.trainer import InnerTrainer
from diloco.model.build import build_model
from diloco.model.fragments import layout_of
from diloco.spec import JobSpec, parse_job
from support import REPOSITORY
from support.job import alone, manifest
from support.loop_pair import LoopPair, PlainLoop
from support.report import Ratio, Ratios, command, paired, write_report
from testbed.units import unit_of

SELECTIVE: Final = {"activationCheckpointing": "Selective"}
NODES_OF_8: Final = {"processesPerNode": 8, "nodesPerLearner": 4}
CASES: Final[Mapping[str, dict[str, Any]]] = {
    "1.2B on 8, 4 micro-batches": {"shape": "1.2B", "ranks": 8, "length": 4096, "micro_batches": 4},
    "8B on 8": {"shape": "8B", "ranks": 8, "length": 8192, "training": SELECTIVE},
    "8B on 8, Muon": {"shape": "8B", "ranks": 8, "length": 256, "training": {"optimizer": {"type": "Muon"}}},
    "8B on 32, HSDP": {
        "shape": "8B",
        "ranks": 32,
        "length": 8192,
        "training": SELECTIVE,
        "pool": {**NODES_OF_8, "parallelism": "HSDP"},
    },
    "28B on 32": {"shape": "28B", "ranks": 32, "length": 8192, "training": SELECTIVE, "pool": NODES_OF_8},
}
"""Sequences of ``length`` tokens, one in a micro-batch of a process."""
PAIRS: Final = {"pico": (64, 8, 200), "nano": (128, 16, 60)}
"""Sequence length, batch size and steps, by the model's preset."""
UNITS: Final = ((2, "FSDP"), (2, "DDP"), (4, "FSDP"), (4, "DDP"), (4, "HSDP"))
"""Processes, and how they hold the model."""
_WARM_UP_STEPS: Final = 5
_LOSSES: Final = 50
"""Steps whose losses are compared."""
_BEFORE: Final = ("activationCheckpointing", "parallelism")
"""What an earlier package may not know."""


def counted(case: Mapping[str, Any], package: Path) -> dict[str, Any]:
    """A case's figures, with the package in that folder."""
    paths = [str(package), str(REPOSITORY / "benchmarks")]
    found = subprocess.run(  # our own interpreter and arguments
        [sys.executable, "-m", "support.step.one_rank", json.dumps(case)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    figures: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return figures


def earlier(case: Mapping[str, Any]) -> dict[str, Any]:
    """The case for a package that lacks ``_BEFORE``."""
    parts = {name: case[name] for name in ("training", "pool") if name in case}
    return {
        **case,
        **{name: {key: one for key, one in part.items() if key not in _BEFORE} for name, part in parts.items()},
    }


def timed(preset: str, steps: int) -> dict[str, Any]:
    """Processor time of both sides of a pair."""
    torch.set_num_threads(1)
    length, batch, most = PAIRS[preset]
    training = {"tokens": 10**12, "sequenceLength": length, "batchSize": batch}
    model = {"builtin": {"preset": preset}}
    spec = parse_job(json.dumps(manifest("step", {"here": 1}, training=training, sync={}, model=model))).spec
    source = open_source(spec.data)
    corpus = torch.from_numpy(np.array(source.read(0, len(source))))
    cpu, module = torch.device("cpu"), build_model(spec)
    plain = PlainLoop(spec, module, corpus, cpu)
    pair = LoopPair(spec, module, plain.step, cpu, time.process_time, exchange=False)
    pair.run(_WARM_UP_STEPS + min(most, steps), 10**6)
    ours, others = (pair.seconds[side][_WARM_UP_STEPS:] for side in ("ours", "plain"))
    return {
        "case": preset,
        "ours_milliseconds": 1000 * statistics.median(ours),
        "plain_milliseconds": 1000 * statistics.median(others),
        "ratio": statistics.median(paired(ours, others)),
    }


def losses(trainer: InnerTrainer, steps: int) -> NDArray[np.float64]:
    """Of each step."""
    return np.array([trainer.step(step / steps).loss for step in range(steps)])


def compared(ranks: int, parallelism: str, job: JobSpec, steps: int) -> dict[str, Any]:
    """How the losses of so many real processes differ from those of one."""
    module, layout = build_model(job), layout_of(build_model(job), job.sync.fragments)
    data = open_data(job, job.learner_ids[0])
    alone = losses(InnerTrainer(job, module, layout, data, torch.device("cpu")), steps)
    with (
        tempfile.TemporaryDirectory() as folder,
        unit_of(ranks, Path(folder)) as unit,
        unit.trainer(job, parallelism) as trainer,
    ):
        made = losses(trainer, steps)
    return {
        "processes": ranks,
        "parallelism": parallelism,
        "largest_difference": float(np.max(abs(made / alone - 1))),
    }


def ratios_of(name: str, case: Mapping[str, Any], figures: Mapping[str, Any]) -> Ratios:
    """Of a case's figures."""
    numel, parts = figures["parameters"], case.get("micro_batches", 1)
    found = {
        "gathered": Ratio(figures["gathered_bytes"] / parts / numel, "bytes a parameter and micro-batch"),
        "reduced": Ratio(figures["reduced_bytes"] / numel, "bytes a parameter"),
        "host reads": Ratio(figures["host_reads_before_optimizer"], "before the optimizer's step"),
        "peak": Ratio(figures["peak_bytes"] / 80e9, "a device of 80 GB"),
        "optimizer": Ratio(figures["optimizer_flops"] * case["ranks"] / figures["whole_flops"], "an even share")
        if figures["optimizer_flops"]
        else None,
    }
    return {f"{name}: {what}": one._replace(less_is_better=True) for what, one in found.items() if one is not None}


def main() -> None:
    """Count the cases, time the pairs and report."""
    parser = command(__doc__)
    parser.add_argument("--case", action="append", choices=CASES, help="only this case, and no pairs")
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="count with another checkout's package, too")
    parser.add_argument("--steps", type=int, default=200, help="steps of each pair at most (200)")
    arguments = parser.parse_args()
    ratios: Ratios = {}
    rows: list[dict[str, Any]] = []
    chosen = {name: CASES[name] for name in arguments.case or CASES}
    packages = {"this": REPOSITORY} | ({"before": arguments.before} if arguments.before else {})
    asked = [(name, package) for name in chosen for package in packages]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # counts are the same whatever runs beside them
        found = pool.map(
            lambda name, package: counted(
                chosen[name] if package == "this" else earlier(chosen[name]), packages[package] / "trainer"
            ),
            *zip(*asked, strict=True),
        )
        for (name, package), figures in zip(asked, found, strict=True):
            rows.append({"case": name, "package": package, **figures})
            if package == "this":
                ratios |= ratios_of(name, chosen[name], figures)
    units, pairs = [], []
    if not arguments.case:
        training = {"tokens": 10**9, "sequenceLength": 32, "batchSize": 8}
        job = parse_job(json.dumps(manifest("step", {"here": 1}, training=training, sync={"fragments": 6}))).spec
        units = [alone(compared, ranks, parallelism, job, _LOSSES) for ranks, parallelism in UNITS]
        pairs = [alone(timed, preset, arguments.steps) for preset in PAIRS]
    for row in units:
        name = f"{row['processes']} processes, {row['parallelism']}: loss"
        ratios[name] = Ratio(row["largest_difference"], "one process's loss", less_is_better=True)
    for row in pairs:
        ratios[f"{row['case']}: step"] = Ratio(row["ratio"], "a plain loop's processor time", less_is_better=True)
    write_report(arguments.json, "step", ratios, {"counted": rows, "compared": units, "timed": pairs})


if __name__ == "__main__":
    main()
