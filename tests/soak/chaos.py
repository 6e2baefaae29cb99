"""A run under random chaos: learners, regions and the syncer are killed, paused and cut off for minutes: ``make soak``.

It fails if merges stop, a process ends for another reason than chaos, something logs a traceback, the tape does not
replay, or memory, open files, threads, disk or tape grow beyond their bounds.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from diloco.local.targets import SYNCER
from diloco.runtime.journal import read_journal
from diloco.runtime.process.exits import EXIT_INTERRUPTED
from testbed import fork_server
from tests.soak.resources import Bounds, Resources
from tests.support.local_run import PROGRAM, SYNC, LocalRun, write_job

RATES = (
    *("--fault", "kill:*@rate=60", "--fault", "kill:*@rate=20,by=region", "--fault", "kill:syncer@rate=40"),
    *("--fault", "pause:*@rate=40,seconds=3", "--fault", "cut:*@rate=40,seconds=3"),
)
"""An hour, of each: a fault every ten seconds, with two learners."""


def soak(folder: Path, seconds: int, seed: int) -> tuple[list[str], Resources]:
    """Chaos for so long; what is wrong, and what was used."""
    job = write_job(
        folder,
        10**12,
        training={"evaluation": {"sequences": 4}},
        sync=SYNC | {"interval": 24, "leaseSeconds": 4},
        syncer={"checkpointEverySeconds": 2, "tape": {"maxSize": "1Mi"}},
    )
    problems: list[str] = []
    with LocalRun(job, "--relays", "--no-view", "--slow", "*=0.3") as run:
        run.wait_until(run.merging)
        before = run.all_train().syncer_step
        resources = Resources(run.output, run.process.pid)
        with resources.sampled():
            flags = ("--for", f"{seconds}s", "--seed", str(seed), "--settle", "300", *RATES)
            chaos = fork_server.run([*PROGRAM, "chaos", str(run.output), *flags])
        if chaos.returncode:
            problems.append(f"diloco chaos: {chaos.stderr}")
        print(chaos.stdout)
        after = max(before, run.all_train().syncer_step)
        run.wait_for(lambda status: status.syncer_step > after)
        ended = run.interrupt()
    if ended.returncode != EXIT_INTERRUPTED:
        problems.append(f"diloco run ended with {ended.returncode}")
    problems += [
        f"{entry.process} ended: {entry.details}"
        for entry in read_journal(run.output / "supervisor.jsonl")
        if entry.event == "exit" and entry.details["code"] and not entry.details["by_chaos"]
    ]
    problems += [
        f"{path.name} has a traceback" for path in (run.output / "logs").iterdir() if "Traceback" in path.read_text()
    ]
    replay = fork_server.run([*PROGRAM, "replay", str(run.output)])
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
