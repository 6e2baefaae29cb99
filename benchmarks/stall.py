"""Share of a learner's wall time in which its inner loop stood still for synchronization: a syncer and two learners.

`diloco run` on loopback, one torch thread a process. Every learner accounts for each second of its inner loop's thread
(``activity.json``): whatever lies between two steps and is not evaluation or a checkpoint's snapshot counts as
synchronization, here split into waiting and copying; ``NAME_evaluating`` and ``NAME_snapshots`` are what those two
take, in a run that evaluates the initial model once. The wall time is that from the first step to the last. The ratio
is the worse learner's.

With fewer cores than processes the figures hold also what the processes take from each other.
"""

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.job import await_steps, manifest, running
from support.report import Ratio, Ratios, command, write_report

WARM_UP_SECONDS = 3.0
FRAGMENTS = INTERVAL = 24


@dataclass(frozen=True, slots=True)
class Case:
    """A model, its inner step and a codec."""

    name: str
    preset: str
    sequence_length: int
    batch_size: int
    compression: str


# nano is the demo's model with its batch; mini's batch is small, so that a step on one core takes about a second.
CASES = (
    Case("nano", "nano", 128, 16, "BF16"),
    Case("nano_int4", "nano", 128, 16, "Int4"),
    Case("mini", "mini", 64, 4, "BF16"),
    Case("mini_int4", "mini", 64, 4, "Int4"),
)


def run_case(case: Case, seconds: float) -> list[dict[str, Any]]:
    """Train for ``seconds``; returns each learner's account of its time."""
    training = {
        "tokens": 10**12,  # it is stopped before
        "sequenceLength": case.sequence_length,
        "batchSize": case.batch_size,
        "checkpointEverySteps": 50,
    }
    sync = {"fragments": FRAGMENTS, "interval": INTERVAL, "compression": case.compression}
    job = manifest("stall", {"here": 2}, training=training, sync=sync, model={"builtin": {"preset": case.preset}})
    with tempfile.TemporaryDirectory() as name:
        output = Path(name) / "out"
        with running(Path(name), job) as run:
            await_steps(run, output)
            time.sleep(WARM_UP_SECONDS + seconds)
        return [json.loads(path.read_text()) for path in sorted(output.glob("learners/*/activity.json"))]


def row_of(case: Case, activity: dict[str, Any]) -> dict[str, Any]:
    """One learner's time, in shares of its wall time."""
    seconds = activity["seconds"]
    wall = sum(seconds.values()) - seconds["loading"]
    waited = seconds["paused"] + seconds["looking"]
    return {
        "case": case.name,
        "learner": activity["learner"],
        "wall_seconds": wall,
        "steps": activity["steps"],
        "step_seconds": seconds["training"] / max(1, activity["steps"]),
        "pushes": activity["pushes"],
        "pulls": activity["pulls"],
        "waited_fraction": waited / wall,
        "copied_fraction": seconds["copying"] / wall,
        "blocked_fraction": (waited + seconds["copying"]) / wall,
        "copy_milliseconds": 1000 * seconds["copying"] / max(1, activity["pushes"] + activity["pulls"]),
        "evaluated_fraction": seconds["evaluating"] / wall,
        "checkpoint_fraction": seconds["checkpointing"] / wall,
    }


def main() -> None:
    """Run the cases and report."""
    parser = command(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="training time of each case (60)")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="only this case")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    ratios: Ratios = {}
    for case in CASES:
        if arguments.case and case.name not in arguments.case:
            continue
        found = [row_of(case, activity) for activity in run_case(case, arguments.seconds)]
        rows += found
        for suffix, share in (("", "blocked"), ("_evaluating", "evaluated"), ("_snapshots", "checkpoint")):
            worst = max(row[f"{share}_fraction"] for row in found)
            ratios[case.name + suffix] = Ratio(
                worst, "the learner's wall time from its first step to its last", less_is_better=True
            )
    write_report(arguments.json, "stall", ratios, {"asked_for": "a case's first ratio below 0.01", "learners": rows})


if __name__ == "__main__":
    main()
