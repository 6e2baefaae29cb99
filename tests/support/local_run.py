"""``diloco run`` of a small job, as a user starts it."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from diloco.local.journal import read_journal
from diloco.spec.syncer_status import SyncerStatus
from testbed.fork_server import Popen

WAIT_SECONDS = 480.0
"""For anything to happen at all: reached only where something is broken, however busy the machine is."""

PROGRAM = (sys.executable, "-m", "diloco.cli.entry")
LEARNERS = ("east/fast/0", "west/old/0")
JOB = """
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {name: small}
spec:
  model: {builtin: {preset: pico}}
  data: {text: {path: TEXT}}
  training: {tokens: TOKENS, sequenceLength: 32, batchSize: 4, checkpointEverySteps: 20, evaluation: {sequences: 8}}
  sync: {fragments: 6, interval: 6, overlap: 2, outerOptimizer: {learningRate: 1.0, momentum: 0.0}, leaseSeconds: 3}
  syncer: {checkpointEverySeconds: 2}
  regions:
  - {name: east, pools: [{name: fast, learners: 1}]}
  - {name: west, pools: [{name: old, learners: 1}]}
"""


def write_job(folder: Path, tokens: int, manifest: str = JOB) -> Path:
    text = folder / "text.txt"
    text.write_text("".join(f"line {n} says {'ab' * (n % 11)} and {n * n % 97}\n" for n in range(4000)))
    path = folder / "job.yaml"
    path.write_text(manifest.replace("TEXT", str(text)).replace("TOKENS", str(tokens)))
    return path


@contextlib.contextmanager
def started(
    job: Path, output: Path, *flags: str, program: Sequence[str] = PROGRAM, popen: type[subprocess.Popen[Any]] = Popen
) -> Iterator[subprocess.Popen[str]]:
    command = [*program, "run", str(job), "--output", str(output), *flags]
    process = popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def run(
    job: Path, output: Path, *flags: str, popen: type[subprocess.Popen[Any]] = Popen
) -> subprocess.CompletedProcess[str]:
    with started(job, output, *flags, popen=popen) as process:
        told, complaints = process.communicate(timeout=WAIT_SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, told, complaints)


def wait_until(true: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def merging(output: Path) -> bool:
    """The syncer has merged something and has written a checkpoint of it."""
    log = output / "logs" / "syncer.log"
    return log.exists() and "a checkpoint is due" in log.read_text()


def processes_of(output: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(output) in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def process_named(output: Path, *words: str) -> psutil.Process:
    """The newest process of the run whose command line has these words."""
    (found,) = [process for process in processes_of(output) if set(words) <= set(process.cmdline())]
    return found


def starts(output: Path, name: str) -> int:
    """How often a process was started."""
    events = [(entry.event, entry.process) for entry in read_journal(output / "supervisor.jsonl")]
    return events.count(("start", name))


def status(output: Path) -> SyncerStatus:
    """What the run's syncer says of itself."""
    address = json.loads((output / "syncer" / "endpoint.json").read_text())["http"]
    with urllib.request.urlopen(f"http://{address}/status", timeout=WAIT_SECONDS) as page:
        return SyncerStatus.model_validate_json(page.read())


def training(output: Path) -> set[str]:
    """The learners that train."""
    return {learner.id for learner in status(output).learners if learner.state == "Training"}
