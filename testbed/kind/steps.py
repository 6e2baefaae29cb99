"""Runs the steps of `make test` one after the other, while what they need is set up beside them.

A step is a target of the Makefile, or one of two waits: `programs` until there are helm and an API server, from when
on clusters are made; `clusters` until they are up. `FIRST+SECOND` makes SECOND beside FIRST, at low priority: a step
that mostly waits, and one that calculates. What can be built is built from the first second on, at low priority too.
Clusters are paused until they are wanted: even idle ones keep a third of a core busy.

The set-up is a process that does ahead of time what the waits do themselves. They find it done, or do it and report
what fails.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from testbed import prometheus
from testbed.kind import bed
from testbed.kind.cache import Cache
from testbed.kind.commands import Unavailable

LISTS = {
    "Took three times as long as recorded, or longer": Path("build/slow.txt"),
    "Failed once, and passed when run again": Path("build/rerun.txt"),
    "Skipped": Path("build/skipped.txt"),
}
"""Where tests write down what is told at the end; the Makefile names the same files."""

_ENDING_SECONDS = 30.0
_NICENESS = 10
"""Of what runs beside a step."""


def run(steps: Sequence[str], names: Mapping[str, int]) -> int:
    """Run ``steps`` until one fails; returns its status. No cluster, engine or set-up is left by it.

    Args:
        steps: Targets of the Makefile, `programs` and `clusters`.
        names: The clusters, and how many nodes each has beside the control plane's.
    """
    cache = Cache.of_user()
    minutes: list[tuple[str, float]] = []
    for path in LISTS.values():
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
    with ExitStack() as at_the_end:
        at_the_end.callback(_tell, minutes)
        at_the_end.callback(_end, names, minutes)
        for name in names:
            at_the_end.enter_context(cache.using(name))
        if names:  # without clusters, the targets that want programs build them
            set_up = at_the_end.enter_context(_set_up())
        env: dict[str, str] = {}
        for step in steps:
            with _timed(step, minutes):
                match step:
                    case "programs":
                        await_programs()
                        wanted = (f"{name}={workers}" for name, workers in names.items())
                        set_up = at_the_end.enter_context(_set_up(*wanted))
                    case "clusters":
                        set_up.wait()
                        env |= _await_clusters(names)
                    case targets:
                        if status := _make(targets.split("+"), env):
                            return status
    return 0


def _end(names: Iterable[str], minutes: list[tuple[str, float]]) -> None:
    # A second signal does not keep it from cleaning up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with _timed("ending", minutes):
        for name in names:
            bed.end_of_use(name)


def await_programs() -> None:
    """Build what tests without a cluster want; they skip what cannot be built, and why is said here."""
    wanted: dict[str, Callable[[], object]] = {
        "an API server or helm": bed.programs,
        "Prometheus": partial(prometheus.ensure, Cache.of_user()),
    }
    for what, get in wanted.items():
        try:
            get()
        except Unavailable as why:
            sys.stderr.write(f"kind: tests that want {what} will be skipped: {why}\n")


def _await_clusters(names: Mapping[str, int]) -> dict[str, str]:
    """Clusters that have the checkout's images, or the variable that tells tests why there are none."""
    try:
        for name, workers in names.items():
            bed.up(name, workers=workers).images()
    except Unavailable as why:
        sys.stderr.write(f"kind: no clusters: {why}\n")
        return {bed.UNAVAILABLE: str(why)}
    return {}


def _make(targets: Sequence[str], env: Mapping[str, str]) -> int:
    """Make the first target and the others beside it; a failure of the first ends them.

    Both signals reach all of it as Ctrl-C does, at which tests end what they have started. What the others print is
    shown after the first.
    """
    with ExitStack() as sessions:
        made = [sessions.enter_context(_target(targets[0], env))]
        logs = [sessions.enter_context(Path(f"build/{each}.log").open("w+b")) for each in targets[1:]]
        for each, log in zip(targets[1:], logs, strict=True):
            made.append(sessions.enter_context(_target(each, env, log)))

        def interrupt(*_: object) -> None:
            for process in made:
                _signal(process, signal.SIGINT)

        before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            status = made[0].wait()
            for process, log in zip(made[1:], logs, strict=True):
                status = status or process.wait()
                log.seek(0)
                shutil.copyfileobj(log, sys.stdout.buffer)
            return status
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _target(
    name: str, env: Mapping[str, str], log: BinaryIO | None = None
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A target that is made; beside another one if it has a log."""
    command = ("make", "--no-print-directory", name)
    return _session(command, signal.SIGINT, env, log=log, niceness=_NICENESS if log else 0)


def _set_up(*clusters: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A set-up beside the steps."""
    command = (sys.executable, "-m", "testbed.kind", "set-up", *clusters)
    return _session(command, signal.SIGTERM, niceness=_NICENESS)


@contextmanager
def _session(
    command: tuple[str, ...],
    ends_by: signal.Signals,
    env: Mapping[str, str] | None = None,
    *,
    log: BinaryIO | None = None,
    niceness: int = 0,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, which has ended, with all that is in it, when this does."""
    process = subprocess.Popen(
        ("nice", f"--adjustment={niceness}", *command),
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=None if log is None else subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        # Where each session is a scheduling group, niceness only counts within it (sched(7), 'The autogroup feature').
        with suppress(OSError):
            Path(f"/proc/{process.pid}/autogroup").write_text(str(niceness), encoding="ascii")
        yield process
    finally:
        _signal(process, ends_by)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_SECONDS)
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextmanager
def _timed(step: str, minutes: list[tuple[str, float]]) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        minutes.append((step, (time.monotonic() - started) / 60))


def _tell(minutes: Sequence[tuple[str, float]]) -> None:
    """What each step took, what took far too long or failed once, and, last, what was skipped."""
    rows = [*minutes, ("all", sum(duration for _, duration in minutes))]
    width = max(len(step) for step, _ in rows)
    sys.stdout.write("".join(["Minutes:\n", *(f"  {step:{width}} {duration:5.1f}\n" for step, duration in rows)]))
    for title, path in LISTS.items():
        sys.stdout.write(f"{title}:\n{path.read_text(encoding='utf-8')}" if path.exists() else f"{title}: nothing\n")
