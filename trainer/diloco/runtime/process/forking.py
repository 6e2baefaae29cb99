"""Starts processes by forking one that has loaded what they need; they are children of whoever asked for them.

The server, which has one thread, forks twice. As the process in between ends, its child becomes one of the nearest
ancestor that asks for such children: the requester. Linux only.
"""

import ctypes
import gc
import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROOM: Final = " " * (1 << 13)
"""The last argument of a server: makes room for the command lines of the processes that it forks."""
_ORDER_BYTES: Final = 1 << 17
_PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass(frozen=True, slots=True)
class Order:
    """What a process is to be."""

    command: Sequence[str]
    """``python -m MODULE ARGUMENTS``."""
    environment: Mapping[str, str]
    directory: str
    group: int
    """Its process group; 0: one of its own."""


def ends() -> tuple[socket.socket, socket.socket]:
    """Both ends of the way to a server."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def fork(way: socket.socket, order: Order, files: Sequence[int], timeout_seconds: float | None = None) -> int:
    """Have a process forked whose standard files are ``files``; returns its id. One thread at a time.

    Raises:
        OSError: there is none: the server is gone, or does not answer in time.
    """
    here, there = ends()
    with here:
        here.settimeout(timeout_seconds)
        # Only meanwhile: other processes that lose their parent belong to the system.
        _adopt_orphans(1)
        try:
            with there:
                socket.send_fds(way, [json.dumps(asdict(order)).encode()], [there.fileno(), *files])
            answer = here.recv(64)
            if not answer:
                raise ConnectionError("the server is gone")
            here.send(b"go on")
        finally:
            _adopt_orphans(0)
    return int(answer)


def freeze() -> None:
    """Do not look again at what a server has loaded, so that its memory stays shared."""
    gc.collect()
    gc.freeze()


def serve(way: socket.socket) -> tuple[Order, list[int]]:
    """Fork a process for each order. Returns only in these, with what `become` needs; ends the server with ``way``."""
    while True:
        message, files, *_ = socket.recv_fds(way, _ORDER_BYTES, 4)
        if not message:
            os._exit(0)
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            for file in files:
                os.close(file)
            continue
        between = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == between:
            time.sleep(0.001)
        way.close()
        return Order(**json.loads(message)), files


def become(order: Order, files: Sequence[int]) -> None:
    """Be the process that was ordered, but for running its module. Ends this one if nobody waits for it any more."""
    os.setpgid(0, order.group)
    asked, *standard = files
    for own, file in enumerate(standard):
        os.dup2(file, own)
        os.close(file)
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.directory)
    show_as(order.command)
    sys.argv = list(order.command[2:])
    with socket.socket(fileno=asked) as answer:
        answer.send(str(os.getpid()).encode())
        if not answer.recv(64):
            os._exit(0)


def show_as(command: Sequence[str]) -> None:
    """Set the command line that others see."""
    # See proc(5): where the arguments are, which only the system has made room for.
    start, end = (int(field) for field in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    title = "\0".join([*command, ""]).encode()[: end - start]
    ctypes.memmove(start, title.ljust(end - start, b"\0"), end - start)


def _adopt_orphans(yes: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, yes, 0, 0, 0)
