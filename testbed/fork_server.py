"""Processes that are forked from one that has loaded what they need, instead of being started by exec.

A syncer or a learner that is started by exec computes for more than two seconds before it does anything, mostly to load
torch. `Popen` is ``subprocess.Popen``, except that the project's programs are forked. Everything else is as after exec:
a child of whoever starts it, its exit code, signals, process group, environment, working directory, files and
command line.

`diloco.runtime.process.forking` says how. ``diloco run`` and a learner start processes too, so each is given a server
of its own, forked before it does anything.
"""

import gc
import importlib
import inspect
import os
import random
import runpy
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diloco.runtime.process.forking import ROOM, Order, become, ends, fork, freeze, serve, show_as

_PROGRAMS = ("diloco.cli.entry", "diloco.cli.fork_server", "diloco_operator.main", "testbed.units")
_LOADED = (
    *(
        "diloco.cli.main",
        "diloco.cli.processes",
        "diloco.learner.process.learner_process",
        "diloco.learner.process.rank_process",
        "diloco.local.report.write",
    ),
    *("diloco.syncer.process", "diloco_operator.main", "cryptography.x509"),
)
_ROOT = Path(__file__).parents[1]
_ARGUMENTS = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


class _Server:
    """The server of this process, and the way to it."""

    def __init__(self, way: socket.socket, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self._way = way
        self._process = process
        self._one_at_a_time = threading.Lock()

    def fork(self, order: Order, files: Sequence[int]) -> int:
        """Returns the process id."""
        with self._one_at_a_time:
            return fork(self._way, order, files)

    def end(self) -> None:
        self._way.close()
        if self._process is not None:
            self._process.wait()


class _Own:
    """What forks for this process."""

    server: _Server | None = None
    more: tuple[str, ...] = ()
    """Modules that the next server also loads."""


@contextmanager
def loading(*modules: str) -> Iterator[None]:
    """Inside, processes are forked from one that has loaded these modules too."""
    end()
    _Own.more = modules
    try:
        yield
    finally:
        end()
        _Own.more = ()


def end() -> None:
    """End the server, if there is one; processes that it forked stay."""
    if _Own.server is not None:
        _Own.server.end()
        _Own.server = None


def _server() -> _Server:
    if _Own.server is None:
        here, there = ends()
        command = [sys.executable, "-c", "from testbed.fork_server import main; main()", *_Own.more, ROOM]
        process = subprocess.Popen(command, cwd=_ROOT, stdin=there.fileno())
        there.close()
        _Own.server = _Server(here, process)
    return _Own.server


class Popen(subprocess.Popen[Any]):
    """A process of the project that is forked, or another one that is started."""

    def _execute_child(self, *arguments: Any) -> None:
        asked = _ARGUMENTS.bind(self, *arguments).arguments
        order = self._order(asked)
        if order is None:
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        files = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        self.pid = _server().fork(order, [own if file == -1 else file for own, file in enumerate(files)])
        self._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in names))  # type: ignore[attr-defined]

    @staticmethod
    def _order(asked: Mapping[str, Any]) -> Order | None:
        """Nothing for a process that is not the project's, or that begins in another way."""
        command = asked["args"]
        if not isinstance(command, list) or command[:2] != [sys.executable, "-m"] or command[2] not in _PROGRAMS:
            return None
        if asked["preexec_fn"] or asked["start_new_session"]:
            return None
        group = os.getpgrp() if asked["process_group"] == -1 else asked["process_group"]
        environment = dict(os.environ if asked["env"] is None else asked["env"])
        return Order(command, environment, str(asked["cwd"] or Path.cwd()), group)


def run(command: Sequence[str], timeout_seconds: float | None = None) -> "subprocess.CompletedProcess[str]":
    """Like ``subprocess.run``, with what it prints."""
    with Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            told, complaints = process.communicate(timeout=timeout_seconds)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, told, complaints)


def main() -> None:
    """Be the server whose orders come by the standard input; each process that it forks returns from here."""
    way = socket.socket(fileno=os.dup(0))
    show_as(["fork-server"])
    gc.disable()
    for name in (*_LOADED, *sys.argv[1:-1]):
        importlib.import_module(name)
    freeze()
    # Loaded where a model is parted. Triton, which comes with it, complains at the end of a process that it is kept.
    importlib.import_module("torch._dynamo")
    gc.enable()
    os.setpgid(0, 0)  # Ctrl-C in the terminal is for the requester
    order, files = serve(way)
    while order.command[3:4] in (["run"], ["learner"]) and _Own.server is None:
        here, there = ends()
        if os.fork() == 0:
            here.close()
            for file in files:
                os.close(file)
            os.setpgid(0, 0)
            order, files = serve(there)
        else:
            there.close()
            _Own.server = _Server(here)
            subprocess.Popen = Popen  # type: ignore[misc]
    become(order, files)
    program = order.command[2]
    sys.path[:1] = [order.directory, *filter(None, order.environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.modules.pop(program, None)  # it runs as __main__
    random.seed()
    runpy.run_module(program, run_name="__main__", alter_sys=True)
