"""Processes that are forked from one that has loaded what they need, instead of being started by exec.

A syncer or a learner that is started by exec computes for more than two seconds before it does anything, mostly to load
torch. `Popen` is ``subprocess.Popen``, except that the project's programs are forked. Everything else is as after exec:
a child of whoever starts it, its exit code, signals, process group, environment, working directory, files and
command line.

A request goes to a server, which is a child of the requester and has one thread. The server forks twice. As the process
in between ends, its child becomes one of the nearest ancestor that asks for such children: the requester. ``diloco
run`` and a learner start processes too, so each is given a server of its own, forked before it does anything.
"""

import ctypes
import gc
import importlib
import inspect
import json
import os
import random
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_PROGRAMS = ("diloco.cli.entry", "diloco_operator.main")
_LOADED = (
    *(
        "diloco.cli.main",
        "diloco.cli.processes",
        "diloco.learner.process",
        "diloco.learner.unit.process",
        "diloco.local.report.write",
    ),
    *("diloco.syncer.process", "diloco_operator.main", "cryptography.x509"),
)
_ROOT = Path(__file__).parents[1]
_TITLE_BYTES = 1 << 13
_REQUEST_BYTES = 1 << 17
_PR_SET_CHILD_SUBREAPER = 36
_ARGUMENTS = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _Request:
    program: str
    command: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    group: int


class _Server:
    """The server of this process, and the way to it."""

    def __init__(self, way: socket.socket, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self._way = way
        self._process = process
        self._one_at_a_time = threading.Lock()

    def fork(self, request: _Request, files: Sequence[int]) -> int:
        """Returns the process id."""
        with self._one_at_a_time:
            # Only meanwhile: other processes that lose their parent belong to the system.
            _adopt_orphans(1)
            try:
                socket.send_fds(self._way, [json.dumps(asdict(request)).encode()], files)
                return int(self._way.recv(64))
            finally:
                _adopt_orphans(0)

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
        here, there = _ends()
        command = [
            sys.executable,
            "-c",
            "from testbed.fork_server import main; main()",
            str(there.fileno()),
            *_Own.more,
        ]
        process = subprocess.Popen(
            [*command, " " * _TITLE_BYTES], cwd=_ROOT, stdin=subprocess.DEVNULL, pass_fds=[there.fileno()]
        )
        there.close()
        _Own.server = _Server(here, process)
    return _Own.server


def _ends() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Popen(subprocess.Popen[Any]):
    """A process of the project that is forked, or another one that is started."""

    def _execute_child(self, *arguments: Any) -> None:
        asked = _ARGUMENTS.bind(self, *arguments).arguments
        request = self._request(asked)
        if request is None:
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        ends = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        self.pid = _server().fork(request, [own if end == -1 else end for own, end in enumerate(ends)])
        self._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in names))  # type: ignore[attr-defined]

    @staticmethod
    def _request(asked: Mapping[str, Any]) -> _Request | None:
        """Nothing for a process that is not the project's, or that begins in another way."""
        command = asked["args"]
        if not isinstance(command, list) or command[:2] != [sys.executable, "-m"] or command[2] not in _PROGRAMS:
            return None
        if asked["preexec_fn"] or asked["start_new_session"]:
            return None
        group = os.getpgrp() if asked["process_group"] == -1 else asked["process_group"]
        environment = dict(os.environ if asked["env"] is None else asked["env"])
        return _Request(command[2], command, environment, str(asked["cwd"] or Path.cwd()), group)


def run(command: Sequence[str], timeout_seconds: float | None = None) -> "subprocess.CompletedProcess[str]":
    """Like ``subprocess.run``, with what it prints."""
    with Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            told, complaints = process.communicate(timeout=timeout_seconds)
        finally:
            process.kill()
    return subprocess.CompletedProcess(command, process.returncode, told, complaints)


def main() -> None:
    """Be the server whose requests come by the socket of this number; each process that it forks returns from here."""
    way = socket.socket(fileno=int(sys.argv[1]))
    _show_as(["fork-server"])
    for name in (*_LOADED, *sys.argv[2:-1]):
        importlib.import_module(name)
    # What is there now is not looked at again, so its pages stay shared.
    gc.collect()
    gc.freeze()
    # Loaded where a model is parted. Triton, which comes with it, complains at the end of a process that it is kept.
    importlib.import_module("torch._dynamo")
    request, files, way = _serve(way)
    while request.command[3:4] in (["run"], ["learner"]) and _Own.server is None:
        here, there = _ends()
        if os.fork() == 0:
            here.close()
            way.close()
            _close(files)
            request, files, way = _serve(there)
        else:
            there.close()
            _Own.server = _Server(here)
            subprocess.Popen = Popen  # type: ignore[misc]
    _become(request, files)
    way.send(str(os.getpid()).encode())
    way.close()
    runpy.run_module(request.program, run_name="__main__", alter_sys=True)


def _serve(way: socket.socket) -> tuple[_Request, list[int], socket.socket]:
    """Returns only in a process that was forked, with what it is to be, and the way to who waits for its id."""
    os.setpgid(0, 0)  # Ctrl-C in the terminal is for the requester
    while True:
        message, files, *_ = socket.recv_fds(way, _REQUEST_BYTES, 3)
        if not message:
            os._exit(0)
        request = _Request(**json.loads(message))
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            _close(files)
            continue
        between = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == between:
            time.sleep(0.001)
        os.setpgid(0, request.group)
        return request, files, way


def _become(request: _Request, files: Sequence[int]) -> None:
    for own, file in enumerate(files):
        os.dup2(file, own)
    _close(files)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.directory)
    _show_as(request.command)
    sys.argv = list(request.command[2:])
    sys.path[:1] = [request.directory, *filter(None, request.environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.modules.pop(request.program, None)  # it runs as __main__
    random.seed()


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)


def _adopt_orphans(yes: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, yes, 0, 0, 0)


def _show_as(command: Sequence[str]) -> None:
    """Set the command line that others see."""
    # See proc(5): where the arguments are, which only the system has made room for.
    start, end = (int(field) for field in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    title = "\0".join([*command, ""]).encode()[: end - start]
    ctypes.memmove(start, title.ljust(end - start, b"\0"), end - start)
