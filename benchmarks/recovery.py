"""Benchmark `recovery`: from the loss of a learner to its first merged work after that, and the same for the syncer.

`diloco run` trains with real processes, which get SIGKILL. Run it with

    python benchmarks/recovery.py --json benchmarks/results/recovery.json

A learner's recovery is measured by its parts: down (the process is found dead and another one started), loading (the
model comes over the link), stepping (its first inner step), merging (the first of its outer gradients is merged). The
first two depend on the machine and on the model; the others are given in inner steps of that learner. What the other
learners lose is the time that they waited for synchronization while one was away, beyond what they wait otherwise.

A syncer is down until a new process has read the checkpoint; then learners join, and the first merge ends it.

Beside it a replica of torchft's DiLoCo is killed as often (`support/goodput`): the seconds from the kill to its next
inner step, without those until its work is merged.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

from diloco.core.engine.events import LearnerJoined, Merged, StepReported
from diloco.local.targets import SYNCER
from diloco.runtime.journal import read_journal
from diloco.tape.reader import TapeEntry
from support.goodput.groups import FaultTolerant
from support.job import carry_out, manifest, python_path, steps_of, summary, tapes
from support.report import Ratio, command, read_entries, write_report

REGIONS = ("a", "b", "c", "d")
VICTIM = "b/pool/0"
SPEED = 0.2
"""Of every learner, so that all of them leave the machine idle."""
BATCH, SEQUENCE_LENGTH = 8, 64
KILL_EVERY = 60
"""Steps of the syncer, or of a replica, between two kills."""
SLOW_MODEL = {"entrypoint": "support.goodput.slow_model:pico", "arguments": {"seconds": 0.1}}


def first(entries: list[TapeEntry], kind: type) -> float:
    """When there was such an event for the first time, on the engine's clock."""
    return next(entry.now for entry in entries if isinstance(entry.event, kind))


def seconds_of(steps: Iterable[tuple[float, StepReported]]) -> float:
    """Of a step."""
    return statistics.median(step.step_seconds for _, step in steps)


def lost_steps(entries: list[TapeEntry], windows: list[tuple[float, float]]) -> float:
    """Steps that the others lost in the windows by waiting, beyond what they wait outside of them."""
    within = outside = 0.0
    for learner, steps in steps_of(entries).items():
        step_seconds, blocked_before = seconds_of(steps), 0.0
        for at, step in steps if learner != VICTIM else ():
            lost = max(0.0, step.spent.blocked_seconds - blocked_before) / step_seconds
            blocked_before = step.spent.blocked_seconds
            inside = any(start <= at <= end for start, end in windows)
            within, outside = within + lost * inside, outside + lost * (not inside)
    length = sum(end - start for start, end in windows)
    return within - outside * length / (entries[-1].now - first(entries, LearnerJoined) - length)


def job_of(steps: int, **spec: Any) -> dict[str, Any]:
    """A job of about so many inner steps of each learner."""
    training = {
        "tokens": round(0.8 * steps * len(REGIONS) * BATCH * SEQUENCE_LENGTH),
        "sequenceLength": SEQUENCE_LENGTH,
        "batchSize": BATCH,
        "checkpointEverySteps": 20,
        "evaluation": {"sequences": 4},
    }
    sync = {"outerOptimizer": {"learningRate": 1.0, "momentum": 0.0}, "leaseSeconds": 5}
    regions, syncer = dict.fromkeys(REGIONS, 1), {"checkpointEverySeconds": 2}
    return manifest("recovery", regions, training=training, sync=sync, syncer=syncer, **spec)


def run(folder: Path, steps: int, kills: list[str]) -> Path:
    """A run with these kills; returns its output."""
    chaos = (word for kill in kills for word in ("--chaos", kill))
    return carry_out(folder, job_of(steps), "--slow", f"*={SPEED}", *chaos)


def learner_killed(count: int) -> dict[str, Any]:
    """One learner is killed again and again."""
    kills = [f"kill:{VICTIM}@step={KILL_EVERY * (number + 1)}" for number in range(count)]
    with tempfile.TemporaryDirectory() as name:
        output = run(Path(name), KILL_EVERY * (count + 5), kills)
        killed = sum(one.event == "kill" for one in read_journal(output / "supervisor.jsonl"))
        ((_, entries),) = tapes(output)
        recoveries = [one for one in summary(output)["recoveries"] if one["learner"] == VICTIM]
    step, joined = seconds_of(steps_of(entries)[VICTIM]), first(entries, LearnerJoined)
    windows = [(joined + one["lost_seconds"], joined + one["lost_seconds"] + one["seconds"]) for one in recoveries]
    after = [(one["stepping"] + one["merging"]) / step for one in recoveries]
    return {
        "kills": killed,
        "recoveries": len(recoveries),
        "step_seconds": step,
        "kill_to_step_seconds": statistics.median(one["down"] + one["loading"] + one["stepping"] for one in recoveries),
        "down_seconds": statistics.median(one["down"] for one in recoveries),
        "loading_seconds": statistics.median(one["loading"] for one in recoveries),
        "stepping_steps": statistics.median(one["stepping"] / step for one in recoveries),
        "merging_steps": statistics.median(one["merging"] / step for one in recoveries),
        "steps_to_merge": statistics.median(after),
        "steps_to_merge_at_most": max(after),
        "steps_others_lost_per_kill": lost_steps(entries, windows) / max(1, len(recoveries)),
    }


def syncer_killed(count: int) -> dict[str, Any]:
    """The syncer is killed again and again."""
    kills = [f"kill:{SYNCER}@step={KILL_EVERY * (number + 1)}" for number in range(count)]
    with tempfile.TemporaryDirectory() as name:
        output = run(Path(name), KILL_EVERY * (count + 1), kills)
        killed = [one.time for one in read_journal(output / "supervisor.jsonl") if one.event == "kill"]
        epochs = tapes(output)
    rows = []
    for at, (header, entries) in zip(killed, epochs[1:], strict=True):
        joined = first(entries, LearnerJoined)
        step = seconds_of(chain.from_iterable(steps_of(entries).values()))
        rows.append((header.started_at - at, joined, (first(entries, Merged) - joined) / step))
    down, joining, merging = zip(*rows, strict=True)
    return {
        "kills": count,
        "down_seconds": statistics.median(down),
        "joining_seconds": statistics.median(joining),
        "merging_steps": statistics.median(merging),
        "merging_steps_at_most": max(merging),
    }


def replica_killed(count: int) -> list[float]:
    """A replica of torchft is killed again and again: each time the seconds to its next step."""
    os.environ["PYTHONPATH"] = python_path()  # every process has to find the model
    victim, seconds, killed_at = REGIONS.index(VICTIM[0]), list[float](), 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out, job = folder / "out", folder / "job.yaml"
        out.mkdir()
        job.write_text(json.dumps(job_of(10**9, model=SLOW_MODEL)))  # it is stopped before
        group = FaultTolerant(len(REGIONS), (job, out), folder / "log")

        def processes() -> list[list[dict[str, Any]]]:
            """The steps of each process of the victim so far, without one that has made none."""
            files = [list(read_entries(path)) for path in out.glob(f"steps-{victim}-*.jsonl")]
            return sorted(filter(None, files), key=lambda steps: steps[0]["at"])

        try:
            for number in range(count + 1):
                while len(made := processes()) <= number or len(made[number]) < KILL_EVERY:
                    group.tend()
                    time.sleep(0.1)
                if number:
                    seconds.append(made[number][0]["at"] - killed_at)
                killed_at = time.time()
                group.kill(victim)
        finally:
            group.stop()
    return seconds


def main() -> None:
    """Run all and report."""
    parser = command(__doc__)
    parser.add_argument("--kills", type=int, default=8, help="of a learner, and of the syncer (default 8)")
    arguments = parser.parse_args()
    learner, syncer = learner_killed(arguments.kills), syncer_killed(arguments.kills)
    replica = statistics.median(replica_killed(arguments.kills))
    own = "one inner step of the learner; from having the model, median"
    others = "one inner step; waits of the three others during a recovery, beyond the usual"
    ratios = {
        "learner_kill_to_step": Ratio(
            learner["kill_to_step_seconds"] / replica, "the same of a replica of torchft, medians", less_is_better=True
        ),
        "learner_steps_to_merge": Ratio(learner["steps_to_merge"], own, less_is_better=True),
        "others_steps_lost_per_kill": Ratio(learner["steps_others_lost_per_kill"], others, less_is_better=True),
        "syncer_steps_from_join_to_merge": Ratio(
            syncer["merging_steps"], "one inner step; from the first join, median", less_is_better=True
        ),
    }
    figures = {"learner": learner, "syncer": syncer, "torchft": {"kill_to_step_seconds": replica}}
    write_report(arguments.json, "recovery", ratios, figures)


if __name__ == "__main__":
    main()
