"""A job of real processes under ``diloco run``, seen and disturbed from outside."""

import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from diloco.spec.syncer_status import LearnerStatus, SyncerStatus
from testbed.fork_server import Popen

WAIT_SECONDS = 180.0
"""For anything to happen at all: reached only where something is broken, however busy the machine is."""


class RunningJob:
    """A job under ``diloco run``, seen from outside."""

    def __init__(self, folder: Path, manifest: str) -> None:
        """``manifest``: with TEXT in place of the path of its data."""
        text = folder / "text.txt"
        text.write_text("".join(f"line {n} says {'ab' * (n % 11)} and {n * n % 97}\n" for n in range(4000)))
        self.manifest = folder / "job.yaml"
        self.manifest.write_text(manifest.replace("TEXT", str(text)))
        self.output = folder / "out"
        command = [sys.executable, "-m", "diloco.cli.entry", "run", str(self.manifest), "--output", str(self.output)]
        self.supervisor = Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def status(self) -> SyncerStatus | None:
        """The syncer's status, if it is running."""
        with contextlib.suppress(OSError, ValueError):
            endpoint = json.loads((self.output / "syncer" / "endpoint.json").read_text())
            with urllib.request.urlopen(f"http://{endpoint['http']}/status", timeout=5) as answer:
                return SyncerStatus.model_validate_json(answer.read())
        return None

    def wait_for(self, what: Callable[[SyncerStatus], bool]) -> SyncerStatus:
        """Wait until the syncer's status satisfies a condition."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            status = self.status()
            if status is not None and what(status):
                return status
            assert self.supervisor.poll() is None, self.supervisor.communicate()
            assert time.monotonic() < deadline, status
            time.sleep(0.1)

    def all_train(self) -> SyncerStatus:
        return self.wait_for(lambda status: {one.state for one in status.learners} == {"Training"})

    def trains_on(self, learner: str, since: int, steps: int = 20) -> SyncerStatus:
        """Wait until a learner has made some more steps."""
        return self.wait_for(lambda status: of(status, learner).steps >= since + steps)

    def process(self, *words: str) -> psutil.Process:
        """The child whose command line has all these words."""
        children = psutil.Process(self.supervisor.pid).children(recursive=True)
        found = [child for child in children if set(words) <= set(_command(child))]
        assert len(found) == 1, [_command(child) for child in children]
        return found[0]

    def learner(self, name: str) -> psutil.Process:
        return self.process("learner", name)

    def syncer(self) -> psutil.Process:
        return self.process("syncer")


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def of(status: SyncerStatus, learner: str) -> LearnerStatus:
    return next(one for one in status.learners if one.id == learner)


@contextlib.contextmanager
def running_job(folder: Path, manifest: str) -> Iterator[RunningJob]:
    """Started, and interrupted at the end."""
    running = RunningJob(folder, manifest)
    try:
        yield running
    finally:
        running.supervisor.send_signal(signal.SIGINT)
        try:
            running.supervisor.communicate(timeout=WAIT_SECONDS)
        finally:
            running.supervisor.kill()
            running.supervisor.communicate()


def untouched(before: SyncerStatus, after: SyncerStatus, *learners: str) -> None:
    """Check that these learners went on in the same session: neither restarted nor reconnected."""
    for name in learners:
        assert of(after, name).incarnation == of(before, name).incarnation
        assert of(after, name).restarts == of(before, name).restarts
