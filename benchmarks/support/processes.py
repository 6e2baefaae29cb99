"""Processes that benchmarks start. They end with the one that started them, also when that is killed."""

import multiprocessing
import os
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final

from diloco.runtime.process.die_with_parent import die_with_parent

SPAWN: Final = multiprocessing.get_context("spawn")
"""Not forked: torch's thread pool does not survive a fork."""


def workers(number: int) -> ProcessPoolExecutor:
    """A pool of so many processes, which keep the code that they started with."""
    return ProcessPoolExecutor(number, SPAWN, initializer=die_with_parent, initargs=(os.getpid(),))


def process(target: Callable[..., object], *arguments: object) -> SpawnProcess:
    """A process that calls ``target``; not started yet."""
    return SPAWN.Process(target=_run, args=(os.getpid(), target, arguments))


def started(words: Sequence[str | Path], **options: Any) -> subprocess.Popen[bytes]:
    """Another program; ``options`` are those of `subprocess.Popen`."""
    # Safe between fork and exec: benchmarks start programs from their only thread.
    return subprocess.Popen(words, preexec_fn=partial(die_with_parent, os.getpid()), **options)  # noqa: PLW1509


def _run(parent_pid: int, target: Callable[..., object], arguments: Sequence[object]) -> None:
    die_with_parent(parent_pid)
    target(*arguments)
