"""``diloco run`` of a small job, as a user starts it, seen and disturbed from outside."""

import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import psutil
import yaml

from diloco.runtime.journal import read_journal
from diloco.spec.job import API_VERSION, KIND
from diloco.spec.status.engine import LearnerStatus
from diloco.spec.status.syncer import SyncerStatus
from testbed.fork_server import Popen

WAIT_SECONDS = 480.0
"""For a run to end: reached only where something is broken, however busy the machine is."""
BUSY = 40.0
"""Times as long as alone that anything may take beside other tests."""

PROGRAM = (sys.executable, "-m", "diloco.cli.entry")
ENDLESS = 10**9
"""Tokens that no test reaches."""
POOLS = MappingProxyType({"east/fast": 1, "west/old": 1})
LEARNERS = "east/fast/0", "west/old/0"
"""Of these pools."""
OUTER = {"learningRate": 1.0, "momentum": 0.0}
GENTLE_SPEED = "0.2"
GENTLE = "--slow", f"*={GENTLE_SPEED}"
"""Of a run that goes on while a test looks at it: its learners leave most of the machine to other tests."""
SYNC: dict[str, Any] = {"fragments": 6, "interval": 12, "outerOptimizer": OUTER, "leaseSeconds": 3}
"""Steps of this model take 20 ms: with an interval of 6 three of four would be overwritten, and make tests longer."""
RECOVERY_SECONDS = BUSY * (SYNC["leaseSeconds"] + 2.0 + 5 * 0.1)
"""Of whatever is awaited in a run: a lease runs out, a process starts and joins, and makes five gentle steps."""


def write_job(folder: Path, tokens: int = ENDLESS, pools: Mapping[str, int] = POOLS, **spec: Any) -> Path:
    """Its manifest: learners by pool; ``spec`` replaces whole fields, but of ``training`` only what it has."""
    text = folder / "text.txt"
    text.write_text("".join(f"line {n} says {'ab' * (n % 11)} and {n * n % 97}\n" for n in range(4000)))
    training = {"sequenceLength": 32, "batchSize": 4, "checkpointEverySteps": 20, "evaluation": {"sequences": 8}}
    named = [(*pool.split("/"), learners) for pool, learners in pools.items()]
    whole: dict[str, Any] = {
        "model": {"builtin": {"preset": "pico"}},
        "data": {"text": {"path": str(text)}},
        "sync": SYNC | {"overlap": 2},
        "syncer": {"checkpointEverySeconds": 2},
        "regions": [{"name": region, "pools": [{"name": pool, "learners": count}]} for region, pool, count in named],
    }
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "small"},
        "spec": whole | spec | {"training": training | {"tokens": tokens} | spec.get("training", {})},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


class LocalRun:
    """A run, killed at the end of a ``with`` if it still goes on. Its output is beside the manifest."""

    def __init__(
        self, job: Path, *flags: str, program: Sequence[str] = PROGRAM, popen: type[subprocess.Popen[Any]] = Popen
    ) -> None:
        self.manifest, self.output = job, job.parent / "out"
        command = [*program, "run", str(job), "--output", str(self.output), *flags]
        self.process: subprocess.Popen[str] = popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def ended(self) -> subprocess.CompletedProcess[str]:
        """Wait for its end."""
        told, complaints = self.process.communicate(timeout=WAIT_SECONDS)
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, told, complaints)

    def interrupt(self) -> subprocess.CompletedProcess[str]:
        """Press Ctrl-C, and wait for its end."""
        self.process.send_signal(signal.SIGINT)
        return self.ended()

    # What it says of itself.

    def log(self, name: str) -> str:
        """The log of a process, empty before it has one."""
        path = self.output / "logs" / f"{name.replace('/', '.')}.log"
        return path.read_text() if path.exists() else ""

    def merging(self) -> bool:
        """The syncer has merged something and has written a checkpoint of it."""
        return "a checkpoint is due" in self.log("syncer")

    def events(self) -> list[tuple[str, str]]:
        """What the supervisor did, and to which process."""
        return [(entry.event, entry.process) for entry in read_journal(self.output / "supervisor.jsonl")]

    def starts(self, name: str) -> int:
        """How often a process was started."""
        return self.events().count(("start", name))

    def summary(self) -> dict[str, Any]:
        """Of a run that is complete."""
        found: dict[str, Any] = json.loads((self.output / "summary.json").read_text())
        assert found["complete"]
        return found

    @property
    def endpoint(self) -> dict[str, str]:
        """The syncer's addresses, by what is served there."""
        found: dict[str, str] = json.loads((self.output / "syncer" / "endpoint.json").read_text())
        return found

    def status(self) -> SyncerStatus:
        """What its syncer says."""
        with urllib.request.urlopen(f"http://{self.endpoint['http']}/status", timeout=WAIT_SECONDS) as page:
            return SyncerStatus.model_validate_json(page.read())

    # Waiting.

    def wait_until(self, true: Callable[[], object]) -> None:
        deadline = time.monotonic() + RECOVERY_SECONDS
        while not true():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, f"not within {RECOVERY_SECONDS:.0f} s"
            time.sleep(0.1)

    def wait_for(self, what: Callable[[SyncerStatus], object]) -> SyncerStatus:
        """Wait until a status of the syncer, which may be away meanwhile, satisfies a condition."""
        seen: list[SyncerStatus] = []

        def satisfies() -> object:
            with contextlib.suppress(OSError, ValueError):
                seen[:] = [self.status()]
            return seen and what(seen[0])

        self.wait_until(satisfies)
        return seen[0]

    def all_train(self) -> SyncerStatus:
        """Wait until each learner's process has made a step: before, its silence counts only after a minute or more."""
        return self.wait_for(
            lambda status: all(one.state == "Training" and one.step_seconds is not None for one in status.learners)
        )

    def trains_on(self, learner: str, since: int, steps: int = 5) -> SyncerStatus:
        """Wait until a learner has made some more steps."""
        return self.wait_for(lambda status: of(status, learner).steps >= since + steps)

    # Its processes.

    def processes(self, *words: str) -> list[psutil.Process]:
        """All that are alive and whose command lines have these words, the supervisor among them."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = process.cmdline()
                of_run = str(self.output) in " ".join(line) and set(words) <= set(line)
                if of_run and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def learner(self, name: str) -> psutil.Process:
        (found,) = self.processes("learner", name)
        return found

    def syncer(self) -> psutil.Process:
        (found,) = self.processes("syncer")
        return found


def of(status: SyncerStatus, learner: str) -> LearnerStatus:
    return next(one for one in status.learners if one.id == learner)


def untouched(before: SyncerStatus, after: SyncerStatus, *learners: str) -> None:
    """Check that these learners went on in the same session: neither restarted nor reconnected."""
    for name in learners:
        assert of(after, name).incarnation == of(before, name).incarnation
        assert of(after, name).restarts == of(before, name).restarts
