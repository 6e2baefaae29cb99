"""Benchmark `planned`: `diloco plan` beside real runs, with a world that `diloco world` has written of a first run.

    python benchmarks/planned.py --json benchmarks/results/planned.json

Each of three jobs runs twice with real processes: on thin links, with a far and a slow region, and with learners that
are killed at a rate. The first run's record becomes the world, in which the job is planned; the second is what the plan
is held against. Both run at the same time, so that whatever else the machine does is the same for them, and in each
step a learner sleeps (`support/goodput/slow_model.py`), so that this changes little. Both have the same seed, and so
the same faults: within minutes the number of failures at one rate differs by more than the tolerances. The first run's
own figures are beside them (``first_``): a plan cannot be expected to be nearer to the second than the first is.
"""

import json
import os
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diloco.core.engine.actions import Finish
from diloco.core.engine.events import LearnerJoined
from support.job import DILOCO, ended_well, manifest, python_path, running, summary, tapes
from support.report import Ratio, Ratios, command, write_report

SLEEP_SECONDS = 0.3
BATCH, SEQUENCE_LENGTH = 8, 64
STEPS = 400
"""Of each learner, if nothing is lost: two to three minutes."""
APART = {"seconds": 0.10, "bytes": 0.02, "merged_points": 3.0}
"""Run and plan should not differ by more: as a share of the plan, and in percent points."""


@dataclass(frozen=True)
class Job:
    """One of the jobs."""

    name: str
    regions: dict[str, int]
    """Learners in each."""
    flags: tuple[str, ...]
    """Of `diloco run`."""
    sync: dict[str, Any] = field(default_factory=dict)

    def manifest(self, steps: int) -> dict[str, Any]:
        training = {
            "tokens": steps * sum(self.regions.values()) * BATCH * SEQUENCE_LENGTH,
            "sequenceLength": SEQUENCE_LENGTH,
            "batchSize": BATCH,
            "checkpointEverySteps": 20,
            "evaluation": {"sequences": 4},
        }
        return manifest(
            f"planned-{self.name}",
            self.regions,
            training=training,
            sync={"outerOptimizer": {"learningRate": 1.0, "momentum": 0.0}, "leaseSeconds": 5, **self.sync},
            model={"entrypoint": "support.goodput.slow_model:pico", "arguments": {"seconds": SLEEP_SECONDS}},
        )


JOBS = (
    Job("thin", {"a": 2, "b": 2}, ("--emulate-link", "a=3Mbit/s,20ms", "--emulate-link", "b=5Mbit/s,20ms")),
    Job(
        "far",
        {"near": 2, "far": 1},
        ("--emulate-link", "near=20Mbit/s,5ms", "--emulate-link", "far=10Mbit/s,160ms", "--slow", "far=0.6"),
        {"compression": "Int4", "downlink": "Int8"},
    ),
    Job("killed", {"here": 4}, ("--emulate-link", "here=20Mbit/s,10ms", "--chaos", "kill:*@rate=30")),
)


def diloco(*arguments: str) -> str:
    """What a command prints; its exit code may say that the job does not fit."""
    done = subprocess.run([*DILOCO, *arguments], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 5):
        raise SystemExit(f"diloco {arguments[0]}: {done.stderr}")
    return done.stdout


def seconds_of(output: Path) -> float:
    """From the first join to the end, on the engine's clock."""
    ((_, entries),) = tapes(output)
    joined = next(one.now for one in entries if isinstance(one.event, LearnerJoined))
    return next(one.now for one in entries if any(isinstance(action, Finish) for action in one.actions)) - joined


def measure(job: Job, steps: int, folder: Path) -> dict[str, Any]:
    """Run a job twice at the same time, and plan it with what was measured in the first run."""
    places = [folder / f"{job.name}-{number}" for number in ("first", "second")]
    with ExitStack() as stack:
        runs = []
        for place in places:
            place.mkdir(parents=True)
            runs.append(stack.enter_context(running(place, job.manifest(steps), "--seed", "1", *job.flags)))
        for run in runs:
            ended_well(run)
    first, second = (place / "out" for place in places)
    world = folder / f"{job.name}.yaml"
    diloco("world", str(first), "--output", str(world))
    plan = json.loads(diloco("plan", str(places[0] / "job.yaml"), "--world", str(world), "--json"))
    own = {f"first_{name}": figure for name, figure in figures_of(first).items() if name != "restarts"}
    return {"job": job.name, **compared(plan, second), **own}


def figures_of(run: Path) -> dict[str, Any]:
    """A run's figures; bytes are those of payloads, as in a plan."""
    figures = summary(run)
    regions = figures["bytes_by_region"]
    return {
        "seconds": seconds_of(run),
        "bytes": sum(one[way][kind] for one in regions for way in ("up", "down") for kind in ("bulk", "again")),
        "merged": figures["merged"],
        "restarts": sum(one["restarts"] for one in figures["learners"]),
    }


def compared(plan: dict[str, Any], run: Path) -> dict[str, Any]:
    """The plan's figures and the run's."""
    forecast = plan["forecast"]
    early, middle, late = forecast["seconds"]
    return {
        **figures_of(run),
        "planned_seconds": middle,
        "planned_early": early,
        "planned_late": late,
        "planned_bytes": sum(map(sum, forecast["bytes"].values())),
        "planned_merged": forecast["merged_share"],
    }


def report(rows: list[dict[str, Any]], path: Path | None) -> None:
    """Print the figures of all jobs, and write them."""
    ratios: Ratios = {}
    for row in rows:
        for name in ("seconds", "bytes"):
            apart = row[name] / row[f"planned_{name}"]
            larger = Ratio(max(apart, 1 / apart), "the smaller one of run and plan", less_is_better=True)
            ratios[f"{row['job']}: {name}"] = larger
    points = {row["job"]: 100 * (row["merged"] - row["planned_merged"]) for row in rows}
    write_report(path, "planned", ratios, {"jobs": rows, "merged_points": points, "apart_at_most": APART})


def main() -> None:
    """Run all jobs, then report."""
    parser = command(__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--only", action="append", help="this job alone; may be repeated")
    parser.add_argument("--folder", type=Path, help="keep the runs there")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = python_path()  # every process has to find the model
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        wanted = [job for job in JOBS if not arguments.only or job.name in arguments.only]
        report([measure(job, arguments.steps, folder) for job in wanted], arguments.json)


if __name__ == "__main__":
    main()
