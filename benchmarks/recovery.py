"""Benchmark `recovery`: from the loss of a learner to its first merged work after that, and the same for the syncer.

`diloco run` trains with real processes, which get SIGKILL. Run it with

    python benchmarks/recovery.py --json benchmarks/results/recovery.json

A learner's recovery is measured by its parts: down (the process is found dead and another one started), loading (the
model comes over the link), stepping (its first inner step), merging (the first of its outer gradients is merged). The
first two depend on the machine and on the model; the others are given in inner steps of that learner. What the other
learners lose is the time that they waited for synchronization while one was away, beyond what they wait otherwise.

A syncer is down until a new process has read the checkpoint; then learners join, and the first merge ends it.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from diloco.core.events import LearnerJoined, Merged, StepReported
from diloco.local.journal import read_journal
from diloco.local.targets import SYNCER
from diloco.tape.reader import TapeEntry, TapeReader, Torn
from diloco.tape.segments import TapeFiles, find_tapes
from report import write_report

REGIONS = ("a", "b", "c", "d")
VICTIM = "b/pool/0"
SPEED = 0.2
"""Of every learner, so that all of them leave the machine idle."""
BATCH, SEQUENCE_LENGTH = 8, 64
KILL_EVERY = 60
"""Steps of the syncer between two kills."""


@dataclass
class Told:
    """What the tape of one epoch has."""

    started_at: float
    """Unix time of the engine's time 0."""
    joined_at: float | None = None
    """When the first learner had joined. Times are of the engine's clock."""
    merged_at: float | None = None
    """When the first merge was done."""
    step_seconds: dict[str, list[float]] = field(default_factory=dict)
    blocked: list[tuple[str, float, float]] = field(default_factory=list)
    """Learner, time and seconds of waits."""
    ended_at: float = 0.0

    @classmethod
    def of(cls, files: TapeFiles) -> "Told":
        """Read the tape of an epoch."""
        tape = TapeReader(files)
        told = cls(tape.header.started_at)
        for entry in tape:
            if isinstance(entry, Torn):
                break
            told._add(entry)
        return told

    def _add(self, entry: TapeEntry) -> None:
        self.ended_at = entry.now
        match entry.event:
            case LearnerJoined() if self.joined_at is None:
                self.joined_at = entry.now
            case Merged() if self.merged_at is None:
                self.merged_at = entry.now
            case StepReported(learner=learner, step_seconds=step_seconds, blocked_seconds=blocked_seconds):
                self.step_seconds.setdefault(learner, []).append(step_seconds)
                self.blocked.append((learner, entry.now, blocked_seconds))

    def lost_steps(self, windows: list[tuple[float, float]], learners: set[str]) -> float:
        """Steps that these learners lost in the windows by waiting, beyond what they wait outside of them."""
        within = outside = 0.0
        for learner, at, seconds in self.blocked:
            if learner in learners:
                steps = seconds / statistics.median(self.step_seconds[learner])
                inside = any(start <= at <= end for start, end in windows)
                within, outside = within + steps * inside, outside + steps * (not inside)
        length = sum(end - start for start, end in windows)
        first = self.joined_at or 0.0
        return within - outside * length / (self.ended_at - first - length)


def manifest(steps: int) -> dict[str, Any]:
    """A job of about so many inner steps of each of its learners."""
    return {
        "apiVersion": "diloco.dev/v1alpha1",
        "kind": "DiLoCoJob",
        "metadata": {"name": "recovery"},
        "spec": {
            "model": {"builtin": {"preset": "pico"}},
            "data": {"text": {}},
            "training": {
                "tokens": round(0.8 * steps * len(REGIONS) * BATCH * SEQUENCE_LENGTH),
                "sequenceLength": SEQUENCE_LENGTH,
                "batchSize": BATCH,
                "checkpointEverySteps": 20,
                "evaluation": {"sequences": 4},
            },
            "sync": {"outerOptimizer": {"learningRate": 1.0, "momentum": 0.0}, "leaseSeconds": 5},
            "syncer": {"checkpointEverySeconds": 2},
            "regions": [{"name": name, "pools": [{"name": "pool", "learners": 1}]} for name in REGIONS],
        },
    }


def carry_out(directory: Path, steps: int, kills: list[str]) -> tuple[Path, dict[str, Any]]:
    """A run with these kills; returns its output and its summary."""
    job, output = directory / "job.yaml", directory / "out"
    job.write_text(yaml.safe_dump(manifest(steps)))
    flags = [word for kill in kills for word in ("--chaos", kill)]
    command = [sys.executable, "-m", "diloco.cli.entry", "run", str(job), "--output", str(output), "--no-view"]
    subprocess.run([*command, "--threads", "1", "--slow", f"*={SPEED}", *flags], check=True, stdout=sys.stderr)
    return output, json.loads((output / "summary.json").read_text(encoding="utf-8"))


def learner_killed(count: int) -> dict[str, Any]:
    """One learner is killed again and again."""
    kills = [f"kill:{VICTIM}@step={KILL_EVERY * (number + 1)}" for number in range(count)]
    with tempfile.TemporaryDirectory() as name:
        output, summary = carry_out(Path(name), KILL_EVERY * (count + 5), kills)
        killed = sum(one.event == "kill" for one in read_journal(output / "supervisor.jsonl"))
        (tape,) = find_tapes(output / "syncer" / "tape")
        told = Told.of(tape)
    recoveries = [one for one in summary["recoveries"] if one["learner"] == VICTIM]
    step = statistics.median(told.step_seconds[VICTIM])
    joined = told.joined_at or 0.0
    windows = [(joined + one["lost_seconds"], joined + one["lost_seconds"] + one["seconds"]) for one in recoveries]
    others = {learner for learner in told.step_seconds if learner != VICTIM}
    after = [(one["stepping"] + one["merging"]) / step for one in recoveries]
    return {
        "kills": killed,
        "recoveries": len(recoveries),
        "step_seconds": step,
        "down_seconds": statistics.median(one["down"] for one in recoveries),
        "loading_seconds": statistics.median(one["loading"] for one in recoveries),
        "stepping_steps": statistics.median(one["stepping"] / step for one in recoveries),
        "merging_steps": statistics.median(one["merging"] / step for one in recoveries),
        "steps_to_merge": statistics.median(after),
        "steps_to_merge_at_most": max(after),
        "steps_others_lost_per_kill": told.lost_steps(windows, others) / max(1, len(recoveries)),
    }


def syncer_killed(count: int) -> dict[str, Any]:
    """The syncer is killed again and again."""
    kills = [f"kill:{SYNCER}@step={KILL_EVERY * (number + 1)}" for number in range(count)]
    with tempfile.TemporaryDirectory() as name:
        output, _ = carry_out(Path(name), KILL_EVERY * (count + 1), kills)
        killed = [one.time for one in read_journal(output / "supervisor.jsonl") if one.event == "kill"]
        epochs = [Told.of(files) for files in find_tapes(output / "syncer" / "tape")]
    rows = []
    for at, epoch in zip(killed, epochs[1:], strict=True):
        assert epoch.joined_at is not None
        assert epoch.merged_at is not None
        step = statistics.median(value for values in epoch.step_seconds.values() for value in values)
        rows.append((epoch.started_at - at, epoch.joined_at, (epoch.merged_at - epoch.joined_at) / step))
    down, joining, merging = zip(*rows, strict=True)
    return {
        "kills": count,
        "down_seconds": statistics.median(down),
        "joining_seconds": statistics.median(joining),
        "merging_steps": statistics.median(merging),
        "merging_steps_at_most": max(merging),
    }


def main() -> int:
    """Run both and report."""
    parser = argparse.ArgumentParser(description="Time from a kill to the first merged work after it, by parts.")
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--kills", type=int, default=8, help="of a learner, and of the syncer (default 8)")
    arguments = parser.parse_args()
    learner, syncer = learner_killed(arguments.kills), syncer_killed(arguments.kills)
    ratios = {
        "learner_steps_to_merge": learner["steps_to_merge"],
        "others_steps_lost_per_kill": learner["steps_others_lost_per_kill"],
        "syncer_steps_from_join_to_merge": syncer["merging_steps"],
    }
    against = {
        "learner_steps_to_merge": "one inner step of the learner; from having the model, median",
        "others_steps_lost_per_kill": "one inner step; waits of the three others during a recovery, beyond the usual",
        "syncer_steps_from_join_to_merge": "one inner step; from the first join, median",
    }
    figures = {"learner": learner, "syncer": syncer}
    write_report(arguments.json, benchmark="recovery", ratios=ratios, figures=figures, against=against)
    return 0


if __name__ == "__main__":
    sys.exit(main())
