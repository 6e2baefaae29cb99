"""A run under random chaos: learners, regions and the syncer are killed, paused and cut off for minutes: ``make soak``.

It fails if merges stop, a process ends for another reason than chaos, something logs a traceback, the tape does not
replay, or memory, open files, threads, disk or tape grow beyond their bounds.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from diloco.local.journal import read_journal
from diloco.local.targets import SYNCER
from diloco.runtime.exits import EXIT_INTERRUPTED
from tests.soak.resources import Bounds, Resources
from tests.support import local_run

JOB = """
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {name: soak}
spec:
  model: {builtin: {preset: pico}}
  data: {text: {path: TEXT}}
  training: {tokens: TOKENS, sequenceLength: 32, batchSize: 4, checkpointEverySteps: 20, evaluation: {sequences: 4}}
  sync: {fragments: 6, interval: 24, outerOptimizer: {learningRate: 1.0, momentum: 0.0}, leaseSeconds: 4}
  syncer: {checkpointEverySeconds: 2, tape: {maxSize: 1Mi}}
  regions:
  - {name: east, pools: [{name: fast, learners: 1}]}
  - {name: west, pools: [{name: old, learners: 1}]}
"""
LEARNERS = {"east/fast/0", "west/old/0"}
RATES = (
    *("--kill-learners", "60", "--kill-regions", "20", "--kill-syncer", "40"),
    *("--pause-learners", "40", "--cut-regions", "40", "--fault-seconds", "3"),
)
"""An hour, of each: a fault every ten seconds, with two learners."""


def soak(folder: Path, seconds: int, seed: int) -> tuple[list[str], Resources]:
    """Chaos for so long; what is wrong, and what was used."""
    job, output = local_run.write_job(folder, 10**12, JOB), folder / "out"
    problems: list[str] = []
    with local_run.started(job, output, "--relays", "--no-view", "--slow", "*=0.3") as process:
        local_run.wait_until(lambda: local_run.merging(output) and local_run.training(output) == LEARNERS, process)
        resources = Resources(output, process.pid)
        before = local_run.status(output).syncer_step
        with resources.sampled():
            flags = ("--for", f"{seconds}s", "--seed", str(seed), "--settle", "300", *RATES)
            chaos = subprocess.run(
                [sys.executable, "-m", "diloco.cli.entry", "chaos", str(output), *flags],
                capture_output=True,
                text=True,
                check=False,
            )
        if chaos.returncode:
            problems.append(f"diloco chaos: {chaos.stderr}")
        print(chaos.stdout)
        local_run.wait_until(lambda: local_run.training(output) == LEARNERS, process)
        after = local_run.status(output).syncer_step
        local_run.wait_until(lambda: local_run.status(output).syncer_step > max(before, after), process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=local_run.WAIT_SECONDS)
    if process.returncode != EXIT_INTERRUPTED:
        problems.append(f"diloco run ended with {process.returncode}")
    problems += [
        f"{entry.process} ended: {entry.details}"
        for entry in read_journal(output / "supervisor.jsonl")
        if entry.event == "exit" and entry.details["code"] and not entry.details["by_chaos"]
    ]
    problems += [
        f"{path.name} has a traceback" for path in (output / "logs").iterdir() if "Traceback" in path.read_text()
    ]
    replay = subprocess.run(
        [sys.executable, "-m", "diloco.cli.entry", "replay", str(output)], capture_output=True, text=True, check=False
    )
    if replay.returncode:
        problems.append(f"{SYNCER}'s tape does not replay: {replay.stderr}")
    return problems + resources.problems(Bounds()), resources


def main() -> int:
    """Soak; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    chosen = parser.parse_args()
    print(f"{chosen.minutes:g} minutes of chaos, --seed {chosen.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        problems, resources = soak(Path(folder), round(60 * chosen.minutes), chosen.seed)
    print(f"first / median / most\n{resources.table()}")
    print("\n".join(problems) or f"{chosen.minutes:g} minutes, nothing found")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
