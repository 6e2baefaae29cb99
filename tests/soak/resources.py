"""What the processes of a local run use, sampled over time, and whether that stays bounded."""

import contextlib
import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from diloco.local.targets import SYNCER
from diloco.runtime.journal import read_journal
from testbed.repeating import repeating

SUPERVISOR = "supervisor"
_MIB = 1 << 20
_SAMPLE_SECONDS = 1.0
_TREND_SAMPLES = 200
"""In a shorter third, a process that has just started makes a trend."""


@dataclass(frozen=True)
class Use:
    """Of one process at one moment."""

    memory_bytes: int
    open_files: int
    threads: int


@dataclass(frozen=True)
class Bounds:
    """Most that a process or the disk may have, beyond what it had when all learners had begun to train."""

    memory_bytes: int = 256 * _MIB
    open_files: int = 64
    threads: int = 48
    tape_bytes: int = 4 * _MIB
    """In all; the manifest's bound and the segment that is being compressed."""
    other_bytes: int = 64 * _MIB
    """Of all other files."""
    trend_bytes: int = 24 * _MIB
    """Most that a process may use more in the last third of the time than in the second, by medians."""


@dataclass
class Resources:
    """Samples of a run, by the name of the process."""

    output: Path
    supervisor: int
    """Its process id."""
    uses: dict[str, list[Use]] = field(default_factory=lambda: defaultdict(list))
    tape_bytes: list[int] = field(default_factory=list)
    other_bytes: list[int] = field(default_factory=list)

    def sampled(self) -> contextlib.AbstractContextManager[None]:
        """Take samples in a thread meanwhile."""
        self.sample()
        return repeating(self.sample, _SAMPLE_SECONDS)

    def sample(self) -> None:
        """Take one."""
        started = {SUPERVISOR: self.supervisor}
        for entry in read_journal(self.output / "supervisor.jsonl"):
            if entry.event == "start":
                started[entry.process] = entry.details["pid"]
        for name, pid in started.items():
            # It may end at any moment.
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                self.uses[name].append(Use(process.memory_info().rss, process.num_fds(), process.num_threads()))
        tape = self.output / SYNCER / "tape"
        self.tape_bytes.append(size(tape))
        self.other_bytes.append(size(self.output) - self.tape_bytes[-1])

    def problems(self, bounds: Bounds) -> list[str]:
        """What is beyond its bound."""
        found = [line for name, uses in self.uses.items() for line in _grown(name, uses, bounds)]
        found += [_over("tape", max(self.tape_bytes), bounds.tape_bytes)]
        found += [_over("other files", max(self.other_bytes), self.other_bytes[0] + bounds.other_bytes)]
        return [line for line in found if line]

    def table(self) -> str:
        """First, median and most of everything, for people."""
        lines = [f"{'':<14}{'memory, MiB':>22}{'open files':>18}{'threads':>18}"]
        for name, uses in sorted(self.uses.items()):
            memory = _three(use.memory_bytes / _MIB for use in uses)
            files, threads = _three(use.open_files for use in uses), _three(use.threads for use in uses)
            lines.append(f"{name:<14}{memory:>22}{files:>18}{threads:>18}")
        lines.append(f"{'tape, MiB':<14}{_three(value / _MIB for value in self.tape_bytes):>22}")
        lines.append(f"{'other, MiB':<14}{_three(value / _MIB for value in self.other_bytes):>22}")
        return "\n".join(lines)


def size(folder: Path) -> int:
    """Bytes of all files below a folder, of which some may go meanwhile."""
    total = 0
    # Unlike `Path.rglob`, it goes on where a folder has gone.
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(path, name).stat(follow_symlinks=False).st_size
    return total


def _grown(name: str, uses: list[Use], bounds: Bounds) -> Iterator[str]:
    # A process that has just started has not loaded anything yet: the first samples of the run are of complete ones.
    first = uses[0]
    yield _over(f"memory of {name}", max(use.memory_bytes for use in uses), first.memory_bytes + bounds.memory_bytes)
    yield _over(f"open files of {name}", max(use.open_files for use in uses), first.open_files + bounds.open_files)
    yield _over(f"threads of {name}", max(use.threads for use in uses), first.threads + bounds.threads)
    third = len(uses) // 3
    if third >= _TREND_SAMPLES:
        middle, last = (
            statistics.median(use.memory_bytes for use in part) for part in (uses[third : 2 * third], uses[2 * third :])
        )
        yield _over(f"memory of {name} in the last third", last, middle + bounds.trend_bytes)


def _over(what: str, value: float, limit: float) -> str:
    return f"{what}: {value:,.0f} is above {limit:,.0f}" if value > limit else ""


def _three(values: Iterable[float]) -> str:
    found = list(values)
    return f"{found[0]:.0f} / {statistics.median(found):.0f} / {max(found):.0f}"
