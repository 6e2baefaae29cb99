"""Two learners of nano in a job, in torchft's DiLoCo and without any synchronization, for the benchmark `cost`.

They take turns, and are paused in those of the others, so that what else the machine does, and how fast it happens to
be, counts in all of them. A pause is shorter than what any of them takes for a failure.
"""

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from diloco.local.status_poll import fetch_status
from diloco.spec.status.syncer import SyncerStatus
from support.cost.exchange import CODECS, FRAGMENTS, LEARNERS, job, trainer_of
from support.goodput.groups import FaultTolerant
from support.job import await_steps, cpu_seconds, python_path, running
from support.processes import SPAWN, process

TURN_SECONDS: Final = 2.0
_WARM_UP_STEPS: Final = len(LEARNERS) * (FRAGMENTS + 2)
"""Of all processes: an interval, after which each fragment has been exchanged."""


@dataclass(frozen=True)
class Side:
    """What takes turns."""

    processes: dict[int, str]
    """Kind by number."""
    steps: Callable[[], int]
    """So many were made, of all processes together."""

    def signal(self, what: signal.Signals) -> None:
        """To all processes."""
        for pid in self.processes:
            os.kill(pid, what)

    def seconds(self) -> dict[str, float]:
        """Processor seconds by kind."""
        found = dict.fromkeys(self.processes.values(), 0.0)
        for pid, kind in self.processes.items():
            found[kind] += cpu_seconds(pid)
        return found


def compared(codecs: str, link: str, turns: int) -> dict[str, Any]:
    """Processor milliseconds of a step by side and kind, and what of the job's tokens is of use.

    ``link``: of the job's learners, as `diloco run --emulate-link` reads it.
    """
    os.environ["PYTHONPATH"] = python_path()
    with ExitStack() as end:
        folder = Path(end.enter_context(tempfile.TemporaryDirectory()))
        (folder / "torchft").mkdir()
        ours, status = end.enter_context(_ours(folder, codecs, link))
        ours.signal(signal.SIGSTOP)
        alone = end.enter_context(_alone())
        alone.signal(signal.SIGSTOP)
        theirs = end.enter_context(_torchft(folder / "torchft", codecs))
        theirs.signal(signal.SIGSTOP)
        sides = (ours, alone, theirs)
        for side in sides:
            end.callback(side.signal, signal.SIGCONT)
        ours.signal(signal.SIGCONT)
        before, tokens = [(side.seconds(), side.steps()) for side in sides], status()
        ours.signal(signal.SIGSTOP)
        for _ in range(turns):
            for side in sides:
                side.signal(signal.SIGCONT)
                time.sleep(TURN_SECONDS)
                side.signal(signal.SIGSTOP)
        ours.signal(signal.SIGCONT)
        after, later = [(side.seconds(), side.steps()) for side in sides], status()
    made = [now - was for (_, was), (_, now) in zip(before, after, strict=True)]
    trained = sum(one.tokens for one in later.learners) - sum(one.tokens for one in tokens.learners)
    return {
        "job": ", ".join(filter(None, (codecs, link))),
        "steps": made[0],
        "merges": later.syncer_step - tokens.syncer_step,
        "merged_share": (later.merged_tokens - tokens.merged_tokens) / trained,
        "speed": made[0] / made[1],
        "torchft_speed": made[2] / made[1],
    } | {
        f"{kind}_ms_a_step": 1e3 * (now[kind] - was[kind]) / steps
        for (was, _), (now, _), steps in zip(before, after, made, strict=True)
        for kind in was
    }


@contextmanager
def _ours(folder: Path, codecs: str, link: str) -> Iterator[tuple[Side, Callable[[], SyncerStatus]]]:
    flags = ("--emulate-link", f"here={link}") if link else ()
    with running(folder, job("nano", codecs), *flags) as run:
        await_steps(run, folder / "out")
        address = json.loads((folder / "out" / "syncer" / "endpoint.json").read_text())["http"]

        def status() -> SyncerStatus:
            return fetch_status(address)

        processes: dict[int, str] = {
            child.pid: kind
            for child in psutil.Process(run.pid).children(recursive=True)
            for kind in ("learner", "syncer")
            if kind in child.cmdline()
        }
        while status().syncer_step < FRAGMENTS:
            time.sleep(0.5)
        yield Side(processes, lambda: sum(one.steps for one in status().learners)), status


@contextmanager
def _alone() -> Iterator[Side]:
    counts = [SPAWN.Value("q") for _ in LEARNERS]
    trainers = [process(_train_alone, *one) for one in zip(LEARNERS, counts, strict=True)]
    try:
        for trainer in trainers:
            trainer.start()
        side = Side(
            {trainer.pid: "unsynchronized" for trainer in trainers if trainer.pid is not None},
            lambda: sum(count.value for count in counts),
        )
        while side.steps() < _WARM_UP_STEPS:
            time.sleep(0.5)
        yield side
    finally:
        for trainer in trainers:
            trainer.kill()


def _train_alone(learner: str, steps: Any) -> None:
    """Until the process is ended."""
    trainer, _ = trainer_of("nano", next(iter(CODECS)), learner)
    while True:
        trainer.step(0.0)
        steps.value += 1


@contextmanager
def _torchft(folder: Path, codecs: str) -> Iterator[Side]:
    """Its way of DiLoCo: the whole model in f32 once in an interval."""
    (folder / "job.json").write_text(json.dumps(job("nano", codecs)))
    here = psutil.Process()
    others = set(here.children(recursive=True))
    group = FaultTolerant(len(LEARNERS), (folder / "job.json", folder), folder / "log")

    def steps() -> int:
        return sum(path.read_text().count("\n") for path in folder.glob("steps-*.jsonl"))

    try:
        group.tend()
        while steps() < _WARM_UP_STEPS:
            time.sleep(0.5)
        yield Side({child.pid: "torchft" for child in set(here.children(recursive=True)) - others}, steps)
    finally:
        group.stop()
