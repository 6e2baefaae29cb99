"""Benchmark `goodput`: training through failures, decoupled and data-parallel, with one schedule of failures.

Real processes get SIGKILL at times that a seed draws (a Poisson process over the whole job); all methods get the same
times, model, data and number of tokens. Run it with

    python benchmarks/goodput.py --json benchmarks/results/goodput.json

- `decoupled`: `diloco run`; a killed learner costs only itself.
- `restart`: synchronous data-parallel training; all ranks start again from the newest checkpoint.
- `elastic`: the same under torchrun, with an agent for each rank; the ranks that are there train.
- `torchft`: its DiLoCo, with a lighthouse; the replicas that are there merge. It is installed into `build/torchft`.

A step takes 0.1 s longer than it computes (`slow_model.py`), so that the machine is mostly idle. Reported are

- `goodput`: the share of the time of all learners or ranks in inner steps, whether or not their work is kept, as in the
  paper. For the group methods, from when all have made a step to the end, or to the limit of time.
  For ours it is the time account of `diloco run`, from each learner's first join to the job's end.
- `kept`: the share in inner steps whose work is in the final model; none of a run that does not end.
- `pace`: seconds to the end without failures, over those with them.
- `loss`: the final evaluation's, over that of the same method and seed without failures.
"""

import argparse
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
import urllib.request
from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from diloco.local.journal import read_journal
from diloco.spec.syncer_status import SyncerStatus
from goodput_groups import Elastic, FaultTolerant, Group, Restarted, torchft_python
from report import make_report, write_json, write_report

HERE = Path(__file__).resolve().parent
METHODS = ("decoupled", "torchft", "restart", "elastic")
INTERVAL = 24
"""Inner steps between two merges; the budget is a multiple, as torchft merges whole intervals."""
SLEEP_SECONDS = 0.1
"""In every step of a learner or rank."""
BATCH, SEQUENCE_LENGTH = 8, 64
ENVIRONMENT = Path("build/torchft")
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
        """The budget."""
        return self.steps * self.learners * BATCH * SEQUENCE_LENGTH

    def failures(self, until_seconds: float) -> list[tuple[float, int]]:
        """Seconds since the first step, and who is killed. The same for all methods."""
        chance, at, found = random.Random(self.seed), 0.0, list[tuple[float, int]]()  # noqa: S311  # no secret
        while self.seconds_between and (at := at + chance.expovariate(1 / self.seconds_between)) < until_seconds:
            found.append((at, chance.randrange(self.learners)))
        return found

    def manifest(self) -> dict[str, Any]:
        """The job. A learner is a region of its own, as it would be a slice or a site."""
        return {
            "apiVersion": "diloco.dev/v1alpha1",
            "kind": "DiLoCoJob",
            "metadata": {"name": "goodput"},
            "spec": {
                "model": {"entrypoint": "slow_model:pico", "arguments": {"seconds": SLEEP_SECONDS}},
                "data": {"text": {}},
                "training": {
                    "tokens": self.tokens,
                    "sequenceLength": SEQUENCE_LENGTH,
                    "batchSize": BATCH,
                    "seed": self.seed,
                    "checkpointEverySteps": 20,
                    "optimizer": {"learningRate": 5.7e-3},
                    "evaluation": {"everyTokens": self.tokens, "sequences": 256},
                },
                "sync": {
                    "interval": INTERVAL,
                    "outerOptimizer": {"learningRate": 1.0, "momentum": 0.0},
                    "leaseSeconds": 5,
                },
                "syncer": {"checkpointEverySeconds": 5},
                "regions": [
                    {"name": f"r{number}", "pools": [{"name": "pool", "learners": 1}]}
                    for number in range(self.learners)
                ],
            },
        }


def carry_out(case: Case, longest_seconds: float) -> dict[str, Any]:
    """Run a case in a folder of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.yaml").write_text(yaml.safe_dump(case.manifest()))
        run = decoupled if case.method == "decoupled" else in_group
        found = run(case, folder, longest_seconds)
    told = {"method": case.method, "learners": case.learners, "seconds_between": case.seconds_between}
    print(json.dumps(told | {"seed": case.seed} | found), file=sys.stderr, flush=True)
    return told | {"seed": case.seed} | found


def decoupled(case: Case, folder: Path, longest_seconds: float) -> dict[str, Any]:
    """`diloco run`, and `diloco chaos` beside it."""
    output = folder / "out"
    diloco = (sys.executable, "-m", "diloco.cli.entry")
    command = [*diloco, "run", str(folder / "job.yaml"), "--output", str(output), "--no-view", "--threads", "1"]
    with subprocess.Popen(command, stdout=sys.stderr) as run:
        while not _all_step(output):
            assert run.poll() is None, "diloco run ended early"
            time.sleep(_TICK_SECONDS)
        began, failures = time.monotonic(), case.failures(longest_seconds)
        if failures:
            faults = [word for at, who in failures for word in ("--fault", f"kill:r{who}/pool/0@at={at:.2f}")]
            length = ("--for", f"{longest_seconds:.0f}s", "--settle", "0")
            subprocess.run([*diloco, "chaos", str(output), *length, *faults], check=False, stdout=sys.stderr)
        assert run.wait() == 0, "diloco run failed"
        seconds = time.monotonic() - began
    summary = json.loads((output / "summary.json").read_text(encoding="utf-8"))
    return {
        "goodput": summary["goodput"],
        "kept": summary["merged"],
        "loss": summary["eval_loss"],
        "seconds": seconds,
        "tokens_trained": sum(one["tokens"] for one in summary["learners"]),
        "kills": sum(entry.event == "kill" for entry in read_journal(output / "supervisor.jsonl")),
    }


def _all_step(output: Path) -> bool:
    """Whether every learner has made a step."""
    try:
        address = json.loads((output / "syncer" / "endpoint.json").read_text())["http"]
        with urllib.request.urlopen(f"http://{address}/status", timeout=5) as page:
            status = SyncerStatus.model_validate_json(page.read())
    except OSError:
        return False
    return bool(status.learners) and all(learner.steps for learner in status.learners)


def group_of(case: Case, folder: Path, out: Path) -> Group:
    """The processes of a method other than ours."""
    arguments = (folder / "job.yaml", out)
    if case.method == "torchft":
        return FaultTolerant(case.learners, arguments, folder / "log", torchft_python(ENVIRONMENT.absolute()))
    make = Restarted if case.method == "restart" else Elastic
    return make(case.learners, (*arguments, "--checkpoint-seconds", str(CHECKPOINT_SECONDS)), folder / "log")


def in_group(case: Case, folder: Path, longest_seconds: float) -> dict[str, Any]:
    """Ranks or replicas that are killed and start again."""
    out = folder / "out"
    out.mkdir()
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
    entries = _entries(out)
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


def _entries(out: Path) -> list[dict[str, float]]:
    found = []
    for path in out.glob("steps-*.jsonl"):
        for line in path.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # it was killed while it wrote
                found.append(json.loads(line))
    return found


def main() -> int:
    """Run all cases, and report after each, because all of them take hours."""
    arguments = _parse()
    # Every process has to find the model.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    rates = [0.0, *sorted(arguments.seconds_between, reverse=True)]
    cases = [
        Case(method, learners, arguments.steps, rate, seed)
        for learners, rate, seed, method in product(
            arguments.learners, rates, range(arguments.seeds), arguments.methods
        )
    ]
    rows: list[dict[str, Any]] = []
    for case in cases:
        if never_ended(rows, case):
            print(f"{case}: left out, as no run with fewer failures has ended", file=sys.stderr, flush=True)
            continue
        rows.append(carry_out(case, arguments.longest_seconds))
        if arguments.json is not None:
            write_json(arguments.json, make_report(**measured(rows, planned=len(cases))))
    write_report(arguments.json, **measured(rows, planned=len(cases)))
    return 0


def never_ended(rows: list[dict[str, Any]], case: Case) -> bool:
    """Whether the method had a rate with fewer failures at which none of its runs ended in time."""
    losses: dict[float, list[float | None]] = defaultdict(list)
    for row in rows:
        if (row["method"], row["learners"]) == (case.method, case.learners):
            losses[row["seconds_between"] or math.inf].append(row["loss"])
    own = case.seconds_between or math.inf
    return any(rate > own and not any(loss is not None for loss in found) for rate, found in losses.items())


def measured(rows: list[dict[str, Any]], *, planned: int) -> dict[str, Any]:
    """What is reported of the runs so far, with means over their seeds."""
    ratios, against = {}, {}
    runs: dict[tuple[int, float, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        runs[row["learners"], row["seconds_between"], row["method"]].append(row)
    for (learners, rate, method), own in runs.items():
        name = f"{method}_{learners}_{rate:g}s"
        for share in ("goodput", "kept"):
            known = [row[share] for row in own if row[share] is not None]
            if known:
                ratios[f"{name}_{share}"] = statistics.mean(known)
                against[f"{name}_{share}"] = "time of all learners, mean over seeds"
        calm = {row["seed"]: row for row in runs[learners, 0.0, method]}
        ended = [(row, calm[row["seed"]]) for row in own if row["loss"] is not None and row["seed"] in calm]
        ratios[f"{name}_ended"] = len([row for row in own if row["loss"] is not None]) / len(own)
        against[f"{name}_ended"] = "runs"
        if rate and ended:
            ratios[f"{name}_loss"] = statistics.mean(row["loss"] / before["loss"] for row, before in ended)
            against[f"{name}_loss"] = "evaluation loss of the same method without failures, seed by seed"
            ratios[f"{name}_pace"] = statistics.mean(before["seconds"] / row["seconds"] for row, before in ended)
            against[f"{name}_pace"] = "speed of the same method without failures, seed by seed, of runs that end"
    figures = {"runs_planned": planned, "runs": rows}
    return {"benchmark": "goodput", "ratios": ratios, "figures": figures, "against": against}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Share of the time that is computed and kept, through failures.")
    parser.add_argument("--json", type=Path, help="write the report here")
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
    return arguments


if __name__ == "__main__":
    sys.exit(main())
