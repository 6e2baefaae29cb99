"""Minutes of attacks in random order on a syncer whose learners train: ``make soak``. Not part of the tests.

It fails if a learner stops making progress, or the syncer logs a traceback, ends, or grows without bound.
"""

import argparse
import contextlib
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from diloco.wire.errors import UnavailableError
from tests.support.attacks import Aim, all_attacks
from tests.support.scripted_learner import ScriptedLearner
from tests.support.syncer_process import SmallJob, SyncerProcess, serving

_LARGEST_GROWTH_BYTES = 1 << 30


def main() -> int:
    """Soak; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = SmallJob(Path(folder), tokens=1_000_000_000, learners=3)
        with serving(job, Path(folder) / "state") as syncer:
            problem = _soak(job, syncer, chosen.minutes, random.Random(chosen.seed))
            if problem is None and syncer.terminate() != 0:
                problem = "the syncer did not end in order"
            if problem is None and "Traceback" in syncer.log:
                problem = "the syncer has written a traceback"
    print(problem or f"{chosen.minutes:g} minutes, nothing found")
    return int(problem is not None)


def _soak(job: SmallJob, syncer: SyncerProcess, minutes: float, chance: random.Random) -> str | None:
    over = threading.Event()
    # The stranger joins as here/cpu/0: without certificates, the two cannot be distinguished.
    learners = [ScriptedLearner(syncer.address, job, f"here/cpu/{index}") for index in (1, 2)]
    threads = [threading.Thread(target=_train, args=(learner, over)) for learner in learners]
    for thread in threads:
        thread.start()
    aim = Aim(syncer.address, syncer.http_address, job)
    process = psutil.Process(syncer.pid)
    before, until = process.memory_info().rss, time.monotonic() + 60.0 * minutes
    try:
        while time.monotonic() < until:
            name, attack = chance.choice(sorted(all_attacks().items()))
            merges = syncer.status().syncer_step
            attack(aim)
            grown = process.memory_info().rss - before
            print(
                f"{name}: {syncer.status().syncer_step - merges} merges meanwhile, {grown >> 20} MiB more", flush=True
            )
            if grown > _LARGEST_GROWTH_BYTES:
                return f"{name}: the syncer has grown by {grown >> 20} MiB"
            if not _merges_more(syncer):
                return f"{name}: nothing is merged any more"
    finally:
        over.set()
        for thread in threads:
            thread.join()
        for learner in learners:
            learner.client.close()
    return None


def _train(learner: ScriptedLearner, over: threading.Event) -> None:
    """Train until ``over``. As a learner process does, join again where the syncer turned a call away."""
    while not over.is_set():
        with contextlib.suppress(UnavailableError):
            learner.begin()
            learner.train(lambda _: over.wait(0.02))
            continue
        learner.hang_up()


def _merges_more(syncer: SyncerProcess) -> bool:
    before, until = syncer.status().syncer_step, time.monotonic() + 60.0
    while time.monotonic() < until:
        if syncer.status().syncer_step > before:
            return True
        time.sleep(0.1)
    return False


if __name__ == "__main__":
    sys.exit(main())
