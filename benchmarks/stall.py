"""Share of a learner's wall time in which its inner loop stood still for synchronization: a syncer and two learners.

Real processes on loopback, one torch thread each, driven as ``diloco run`` drives them. Every learner accounts for
each second of its inner loop's thread (``activity.json``): whatever lies between two steps and is not evaluation or a
checkpoint's snapshot counts as synchronization, here split into waiting and copying; ``NAME_evaluating`` and
``NAME_snapshots`` are what those two take, in a run that evaluates the initial model once. The wall time is that from
the first step to the last. The ratio is the worse learner's.

With fewer cores than processes the figures hold also what the processes take from each other.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import write_report

LEARNERS = 2
PATIENCE_SECONDS = 120.0
WARM_UP_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Case:
    """A model, its inner step and a codec."""

    name: str
    preset: str
    sequence_length: int
    batch_size: int
    fragments: int
    interval: int
    compression: str


# nano is the demo's model with its batch; mini's batch is small, so that a step on one core takes about a second.
CASES = (
    Case("nano", "nano", 128, 16, 24, 24, "BF16"),
    Case("nano_int4", "nano", 128, 16, 24, 24, "Int4"),
    Case("mini", "mini", 64, 4, 24, 24, "BF16"),
    Case("mini_int4", "mini", 64, 4, 24, 24, "Int4"),
)


def manifest(case: Case) -> dict[str, Any]:
    """A job that does not end before it is stopped."""
    return {
        "apiVersion": "diloco.dev/v1alpha1",
        "kind": "DiLoCoJob",
        "metadata": {"name": "stall"},
        "spec": {
            "model": {"builtin": {"preset": case.preset}},
            "data": {"text": {}},
            "training": {
                "tokens": 10**12,
                "sequenceLength": case.sequence_length,
                "batchSize": case.batch_size,
                "checkpointEverySteps": 50,
            },
            "sync": {"fragments": case.fragments, "interval": case.interval, "compression": case.compression},
            "regions": [{"name": "here", "pools": [{"name": "cpu", "learners": LEARNERS}]}],
        },
    }


def run_case(case: Case, seconds: float, folder: Path) -> list[dict[str, Any]]:
    """Train for ``seconds``; returns each learner's account of its time."""
    job = folder / "job.json"
    job.write_text(json.dumps(manifest(case)))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.append(_start(folder, "syncer", job, "--listen", "127.0.0.1:0"))
        address = json.loads(_appears(folder / "syncer" / "endpoint.json", processes).read_text())["sync"]
        for index in range(LEARNERS):
            learner = f"here/cpu/{index}"
            processes.append(_start(folder, f"learner-{index}", job, "--learner", learner, "--syncer", address))
        for index in range(LEARNERS):
            # A learner's first checkpoint comes after 50 steps: what runs only once is behind it.
            _until_it_trains(folder / f"learner-{index}.log", processes)
        time.sleep(WARM_UP_SECONDS + seconds)
        for process in processes[1:]:
            process.send_signal(signal.SIGTERM)
        for process in processes[1:]:
            process.wait(PATIENCE_SECONDS)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads((folder / f"learner-{index}" / "activity.json").read_text()) for index in range(LEARNERS)]


def _start(folder: Path, name: str, job: Path, *flags: str) -> subprocess.Popen[bytes]:
    kind = name.partition("-")[0]
    command = [sys.executable, "-m", "diloco.cli.entry", kind, "--job", str(job), "--directory", str(folder / name)]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen([*command, "--threads", "1", *flags], stdout=log, stderr=log)


def _appears(path: Path, processes: list[subprocess.Popen[bytes]]) -> Path:
    _await(path.exists, f"{path} did not appear", processes)
    return path


def _until_it_trains(log: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    _await(lambda: "loaded the model" in log.read_text(), f"{log}: the learner does not train", processes)


def _await(condition: Any, complaint: str, processes: list[subprocess.Popen[bytes]]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > until or any(process.poll() is not None for process in processes):
            sys.exit(complaint)
        time.sleep(0.1)


def row_of(case: Case, activity: dict[str, Any]) -> dict[str, Any]:
    """One learner's time, in shares of its wall time."""
    seconds = activity["seconds"]
    wall = sum(seconds.values()) - seconds["loading"]
    return {
        "case": case.name,
        "learner": activity["learner"],
        "wall_seconds": wall,
        "steps": activity["steps"],
        "step_seconds": seconds["training"] / max(1, activity["steps"]),
        "pushes": activity["pushes"],
        "pulls": activity["pulls"],
        "waited_fraction": (seconds["paused"] + seconds["looking"]) / wall,
        "copied_fraction": seconds["copying"] / wall,
        "blocked_fraction": (seconds["paused"] + seconds["looking"] + seconds["copying"]) / wall,
        "copy_milliseconds": 1000 * seconds["copying"] / max(1, activity["pushes"] + activity["pulls"]),
        "evaluated_fraction": seconds["evaluating"] / wall,
        "checkpoint_fraction": seconds["checkpointing"] / wall,
    }


def main() -> None:
    """Run the cases and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the report there")
    parser.add_argument("--seconds", type=float, default=60.0, help="training time of each case (60)")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="only this case")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    for case in CASES:
        if arguments.case and case.name not in arguments.case:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = [row_of(case, activity) for activity in run_case(case, arguments.seconds, Path(folder))]
        rows += found
        ratios[case.name] = max(row["blocked_fraction"] for row in found)
        ratios[f"{case.name}_evaluating"] = max(row["evaluated_fraction"] for row in found)
        ratios[f"{case.name}_snapshots"] = max(row["checkpoint_fraction"] for row in found)
    write_report(
        arguments.json,
        benchmark="stall",
        ratios=ratios,
        figures={"asked_for": "every case's first ratio below 0.01", "learners": rows},
        against=dict.fromkeys(ratios, "the learner's wall time from its first step to its last"),
    )


if __name__ == "__main__":
    main()
