"""Benchmark `goodput`: training through failures, decoupled and data-parallel, with one schedule of failures.

    python benchmarks/goodput.py --json benchmarks/results/goodput.json

Real processes get SIGKILL at times that a seed draws (a Poisson process over the whole job); all methods get the same
times, model, data and number of tokens. `decoupled` is `diloco run`, the others are in `support/goodput/groups.py`;
torchft is installed into `build/torchft`. docs/reference/benchmarks.md says what goodput, kept and pace are.

A group's goodput counts from when all have made a step to the end, or to the limit of time; ours is the time account of
`diloco run`, from each learner's first join to the job's end. A run that does not end keeps nothing.
"""

import contextlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from diloco.runtime.journal import read_journal
from support.goodput.groups import Elastic, FaultTolerant, Group, Restarted
from support.job import DILOCO, await_steps, ended_well, manifest, python_path, running, summary
from support.report import Ratio, Ratios, command, read_entries, save_report, write_report

METHODS = ("decoupled", "torchft", "restart", "elastic")
INTERVAL = 24
"""Inner steps between two merges; the budget is a multiple, as torchft merges whole intervals."""
SLEEP_SECONDS = 0.1
"""In every step of a learner or rank."""
BATCH, SEQUENCE_LENGTH = 8, 64
CHECKPOINT_SECONDS = 1.0
"""One takes milliseconds here: about the optimum for a failure every 10 s (Young and Daly)."""
_STARTING_SECONDS = 120.0
_TICK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    method: str
    learners: int
    steps: int
    """Of each learner, if nothing fails."""
    seconds_between: float
    """Between two failures anywhere, on average; 0: none."""
    seed: int

    @property
    def tokens(self) -> int:
        return self.steps * self.learners * BATCH * SEQUENCE_LENGTH

    def failures(self, until_seconds: float) -> list[tuple[float, int]]:
        """Seconds since the first step, and who is killed. The same for all methods."""
        chance, at, found = random.Random(self.seed), 0.0, list[tuple[float, int]]()  # noqa: S311  # no secret
        while self.seconds_between and (at := at + chance.expovariate(1 / self.seconds_between)) < until_seconds:
            found.append((at, chance.randrange(self.learners)))
        return found

    def manifest(self) -> dict[str, Any]:
        """The job. A learner is a region of its own, as it would be a slice or a site."""
        training = {
            "tokens": self.tokens,
            "sequenceLength": SEQUENCE_LENGTH,
            "batchSize": BATCH,
            "seed": self.seed,
            "checkpointEverySteps": 20,
            "optimizer": {"learningRate": 5.7e-3},
            "evaluation": {"everyTokens": self.tokens, "sequences": 256},
        }
        outer = {"learningRate": 1.0, "momentum": 0.0}
        return manifest(
            "goodput",
            {f"r{number}": 1 for number in range(self.learners)},
            training=training,
            sync={"interval": INTERVAL, "outerOptimizer": outer, "leaseSeconds": 5},
            syncer={"checkpointEverySeconds": 5},
            model={"entrypoint": "support.goodput.slow_model:pico", "arguments": {"seconds": SLEEP_SECONDS}},
        )


def carry_out(case: Case, longest_seconds: float) -> dict[str, Any]:
    """Run a case in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        run = decoupled if case.method == "decoupled" else in_group
        found = run(case, Path(name), longest_seconds)
    row = {name: getattr(case, name) for name in ("method", "learners", "seconds_between", "seed")} | found
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def decoupled(case: Case, folder: Path, longest_seconds: float) -> dict[str, Any]:
    """`diloco run`, and `diloco chaos` beside it."""
    output = folder / "out"
    with running(folder, case.manifest()) as run:
        await_steps(run, output)
        began, failures = time.monotonic(), case.failures(longest_seconds)
        if failures:
            faults = [word for at, who in failures for word in ("--fault", f"kill:r{who}/pool/0@at={at:.2f}")]
            length = ("--for", f"{longest_seconds:.0f}s", "--settle", "0")
            subprocess.run([*DILOCO, "chaos", str(output), *length, *faults], check=False, stdout=sys.stderr)
        ended_well(run)
        seconds = time.monotonic() - began
    figures = summary(output)
    return {
        "goodput": figures["goodput"],
        "kept": figures["merged"],
        "loss": figures["eval_loss"],
        "seconds": seconds,
        "tokens_trained": sum(one["tokens"] for one in figures["learners"]),
        "kills": sum(entry.event == "kill" for entry in read_journal(output / "supervisor.jsonl")),
    }


def group_of(case: Case, folder: Path, out: Path) -> Group:
    """The processes of a method other than ours."""
    arguments = (folder / "job.yaml", out)
    if case.method == "torchft":
        return FaultTolerant(case.learners, arguments, folder / "log")
    make = Restarted if case.method == "restart" else Elastic
    return make(case.learners, (*arguments, "--checkpoint-seconds", str(CHECKPOINT_SECONDS)), folder / "log")


def in_group(case: Case, folder: Path, longest_seconds: float) -> dict[str, Any]:
    """Ranks or replicas that are killed and start again."""
    out = folder / "out"
    out.mkdir()
    (folder / "job.yaml").write_text(json.dumps(case.manifest()))  # JSON is YAML
    group = group_of(case, folder, out)
    waiting, kills, began, starts = case.failures(longest_seconds), 0, None, time.monotonic()
    try:
        while not group.tend():
            now = time.monotonic()
            if began is None:
                assert now - starts < _STARTING_SECONDS, (folder / "log").read_text()[-4000:]
                began = (now, time.time()) if len(list(out.glob("steps-*-*.jsonl"))) == case.learners else None
            else:
                while waiting and waiting[0][0] <= now - began[0]:
                    kills += group.kill(waiting.pop(0)[1])
                if now - began[0] > longest_seconds:
                    break
            time.sleep(_TICK_SECONDS)
    finally:
        group.stop()
    assert began is not None
    seconds = time.monotonic() - began[0]
    entries = [one for path in out.glob("steps-*.jsonl") for one in read_entries(path)]
    computing = sum(one["computing"] for one in entries if one["at"] > began[1]) / (case.learners * seconds)
    result: dict[str, Any] = {"loss": None, "tokens": 0}
    with contextlib.suppress(FileNotFoundError):
        result = json.loads((out / "result.json").read_text())
    trained = sum(one["tokens"] for one in entries)
    done = result["tokens"] > 0  # what is not finished in time has kept nothing: it is left out of the means
    return {
        "goodput": min(1.0, computing),
        "kept": computing * min(1.0, result["tokens"] / trained) if done else None,
        "loss": result["loss"],
        "seconds": seconds if done else None,
        "tokens_trained": trained,
        "kills": kills,
    }


def main() -> None:
    """Run all cases, and report after each, because all of them take hours."""
    parser = command(__doc__)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="default: all")
    parser.add_argument("--learners", type=int, nargs="+", default=[4, 8], help="numbers of learners (default 4 8)")
    parser.add_argument("--steps", type=int, default=480, help="of each learner (default 480)")
    parser.add_argument(
        "--seconds-between", type=float, nargs="+", default=[30.0, 10.0], help="mean time between failures"
    )
    parser.add_argument("--seeds", type=int, default=3, help="seeds, from 0 (default 3)")
    parser.add_argument(
        "--longest-seconds", type=float, default=1200.0, help="of one run from all having started (default 1200)"
    )
    arguments = parser.parse_args()
    if arguments.steps < INTERVAL or arguments.steps % INTERVAL:
        parser.error(f"--steps: {arguments.steps} is not a multiple of {INTERVAL}; use {INTERVAL * 20}, for example")
    os.environ["PYTHONPATH"] = python_path()  # every process has to find the model
    rates = [0.0, *sorted(arguments.seconds_between, reverse=True)]
    combinations = product(arguments.learners, rates, range(arguments.seeds), arguments.methods)
    cases = [Case(method, learners, arguments.steps, rate, seed) for learners, rate, seed, method in combinations]
    rows: list[dict[str, Any]] = []
    for case in cases:
        if never_ended(rows, case):
            print(f"{case}: left out, as no run with fewer failures has ended", file=sys.stderr, flush=True)
            continue
        rows.append(carry_out(case, arguments.longest_seconds))
        figures = {"runs_planned": len(cases), "runs": rows}
        save_report(arguments.json, "goodput", measured(rows), figures)
    write_report(arguments.json, "goodput", measured(rows), figures)


def never_ended(rows: list[dict[str, Any]], case: Case) -> bool:
    """Whether the method had a rate with fewer failures at which none of its runs ended in time."""
    losses: dict[float, list[float | None]] = defaultdict(list)
    for row in rows:
        if (row["method"], row["learners"]) == (case.method, case.learners):
            losses[row["seconds_between"] or math.inf].append(row["loss"])
    own = case.seconds_between or math.inf
    return any(rate > own and not any(loss is not None for loss in found) for rate, found in losses.items())


def measured(rows: list[dict[str, Any]]) -> Ratios:
    """Means over the seeds of the runs so far."""
    ratios: Ratios = {}
    runs: dict[tuple[int, float, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        runs[row["learners"], row["seconds_between"], row["method"]].append(row)
    for (learners, rate, method), own in runs.items():
        name = f"{method}_{learners}_{rate:g}s"
        for share in ("goodput", "kept"):
            if known := [row[share] for row in own if row[share] is not None]:
                ratios[f"{name}_{share}"] = Ratio(statistics.mean(known), "time of all learners, mean over seeds")
        ended = [row for row in own if row["loss"] is not None]
        ratios[f"{name}_ended"] = Ratio(len(ended) / len(own), "runs")
        calm = {row["seed"]: row for row in runs[learners, 0.0, method]}
        pairs = [(row, calm[row["seed"]]) for row in ended if row["seed"] in calm]
        if rate and pairs:
            loss = statistics.mean(row["loss"] / before["loss"] for row, before in pairs)
            pace = statistics.mean(before["seconds"] / row["seconds"] for row, before in pairs)
            alike = "the same method without failures, seed by seed"
            ratios[f"{name}_loss"] = Ratio(loss, f"evaluation loss of {alike}", less_is_better=True)
            ratios[f"{name}_pace"] = Ratio(pace, f"speed of {alike}, of runs that end")
    return ratios


if __name__ == "__main__":
    main()
