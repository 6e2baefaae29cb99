"""The jobs that benchmarks train, and the processes that do it."""

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from diloco.core.engine.events import StepReported
from diloco.local.status_poll import StatusError, fetch_status
from diloco.tape.reader import TapeEntry, TapeHeader, TapeReader, Torn
from diloco.tape.segments import find_tapes
from support.processes import started, workers

if TYPE_CHECKING:
    import subprocess

DILOCO: Final = (sys.executable, "-m", "diloco.cli.entry")
_TICK_SECONDS: Final = 0.1
T = TypeVar("T")


def manifest(
    name: str, regions: Mapping[str, int], *, training: dict[str, Any], sync: dict[str, Any], **spec: Any
) -> dict[str, Any]:
    """A job with so many learners in each region, of pico if ``spec`` has no other model."""
    return {
        "apiVersion": "diloco.dev/v1alpha1",
        "kind": "DiLoCoJob",
        "metadata": {"name": name},
        "spec": {
            "model": {"builtin": {"preset": "pico"}},
            "data": {"text": {}},
            "training": training,
            "sync": sync,
            "regions": [
                {"name": region, "pools": [{"name": "pool", "learners": learners}]}
                for region, learners in regions.items()
            ],
            **spec,
        },
    }


def alone(function: Callable[..., T], *arguments: object) -> T:
    """What a function returns in a process of its own, of which nothing is left for the next one."""
    with workers(1) as process:
        return process.submit(function, *arguments).result()


def cpu_seconds(pid: int) -> float:
    """What a process has spent so far."""
    return time.clock_gettime(~pid << 3 | 2)  # its clock (clock_getcpuclockid)


def python_path() -> str:
    """For processes that import from this folder's parent."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))


@contextmanager
def running(folder: Path, job: dict[str, Any], *flags: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`diloco run` with one thread a process, whose output is in ``folder / "out"``."""
    (folder / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
    command = [*DILOCO, "run", str(folder / "job.yaml"), "--output", str(folder / "out"), "--no-view"]
    with started([*command, "--threads", "1", *flags], stdout=sys.stderr) as run:
        try:
            yield run
        finally:
            run.terminate()


def carry_out(folder: Path, job: dict[str, Any], *flags: str) -> Path:
    """`diloco run` to the job's end; returns its output."""
    with running(folder, job, *flags) as run:
        ended_well(run)
    return folder / "out"


def ended_well(run: "subprocess.Popen[bytes]") -> None:
    """Wait for a run's end; the benchmark ends if it fails."""
    if code := run.wait():
        raise SystemExit(f"diloco run ended with {code}")


def await_steps(run: "subprocess.Popen[bytes]", output: Path) -> None:
    """Wait until every learner of a run has made a step."""
    while not _all_step(output):
        if run.poll() is not None:
            raise SystemExit("diloco run ended early")
        time.sleep(_TICK_SECONDS)


def _all_step(output: Path) -> bool:
    try:
        address = json.loads((output / "syncer" / "endpoint.json").read_text())["http"]
        status = fetch_status(address, timeout_seconds=5.0)
    except (OSError, StatusError):
        return False
    return bool(status.learners) and all(learner.steps for learner in status.learners)


def summary(output: Path) -> dict[str, Any]:
    """A finished run's figures."""
    found: dict[str, Any] = json.loads((output / "summary.json").read_text(encoding="utf-8"))
    return found


def tapes(output: Path) -> list[tuple[TapeHeader, list[TapeEntry]]]:
    """What each start of a run's syncer wrote, without a line in which it was killed."""
    readers = [TapeReader(files) for files in find_tapes(output / "syncer" / "tape")]
    return [(one.header, [entry for entry in one if not isinstance(entry, Torn)]) for one in readers]


def steps_of(entries: Iterable[TapeEntry]) -> dict[str, list[tuple[float, StepReported]]]:
    """Steps and their times on the engine's clock, by learner."""
    found: dict[str, list[tuple[float, StepReported]]] = defaultdict(list)
    for entry in entries:
        if isinstance(entry.event, StepReported):
            found[entry.event.learner].append((entry.now, entry.event))
    return found
