"""How the processes of a learner find each other, and see that they are of one job and one version."""

import hashlib
import socket
import time
from collections.abc import Callable
from typing import Final

import torch
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # documented

from diloco import __version__
from diloco.core.fragments import Layout
from diloco.learner.data.source import DataStoppedError
from diloco.learner.unit.collectives.world import NO_LIMIT, World
from diloco.learner.unit.nodes.node_link import SCHEME
from diloco.runtime.addresses import parse_address
from diloco.spec import JobSpec

_LOOK_SECONDS: Final = 0.1


class UnitError(RuntimeError):
    """A process differs from the first of its learner; the text is one line."""


def store_at(where: str, ranks: int, listening: socket.socket | None = None) -> Store:
    """Where the processes meet: on one machine a file, else `Meeting.url`, which the first serves at ``listening``."""
    store: Store
    if where.startswith(SCHEME):
        token, host, port = meeting_at(where)
        shared = TCPStore(
            host,
            port,
            is_master=listening is not None,
            timeout=NO_LIMIT,
            wait_for_workers=False,
            use_libuv=False,  # some builds of torch have none
            master_listen_fd=None if listening is None else listening.detach(),
        )
        store = PrefixStore(token, shared)
    else:
        store = FileStore(where, ranks)
    store.set_timeout(NO_LIMIT)
    return store


def meeting_at(where: str) -> tuple[str, str, int]:
    """Token, host and port of `Meeting.url`."""
    token, _, address = where.removeprefix(SCHEME).partition("@")
    return token, *parse_address(address)


def await_all(store: Store, rank: int, ranks: int, seconds: float, stopping: Callable[[], bool]) -> list[int]:
    """Say that this process is there, and wait for the others; returns the ranks that are not in ``seconds``.

    Raises:
        DataStoppedError: this one is asked to stop, says ``stopping``.
    """
    store.set(_there(rank), "")
    until = time.monotonic() + seconds
    while (missing := [one for one in range(ranks) if not store.check([_there(one)])]) and time.monotonic() < until:
        if stopping():
            raise DataStoppedError("stopped before all processes of this learner were there")
        time.sleep(_LOOK_SECONDS)
    return missing


def await_others(store: Store, ranks: int, stopping: Callable[[], bool]) -> None:
    """In the first process: wait until all are there. Others may tokenize documents for long.

    It is called before `joined`, which waits inside of torch, where no signal is heard.

    Raises:
        DataStoppedError: it is asked to stop, says ``stopping``.
    """
    while not store.check([_there(rank) for rank in range(1, ranks)]):
        if stopping():
            raise DataStoppedError("stopped before all processes of this learner were there")
        time.sleep(_LOOK_SECONDS)


def joined(store: Store, rank: int, ranks: int, device: torch.device, facts: dict[str, str]) -> World:
    """Wait for all processes, and connect with them. ``facts``: see `facts_of`.

    Raises:
        UnitError: this process differs from the first.
        RuntimeError: another one has ended meanwhile.
    """
    store.set(_there(rank), "")
    compare(store, rank, ranks, facts)
    return World(store, rank, ranks, device)


def compare(store: Store, rank: int, ranks: int, facts: dict[str, str]) -> None:
    """Compare this process's facts with those of the first.

    Raises:
        UnitError: this process differs from the first.
    """
    every = facts | {"number of processes": str(ranks)}
    if rank == 0:
        for name, value in every.items():
            store.set(f"first/{name}", value)
    others = {name: told for name, value in every.items() if (told := store.get(f"first/{name}").decode()) != value}
    if others:
        what = ", ".join(f"{name} ({every[name]}, there {told})" for name, told in others.items())
        raise UnitError(f"rank {rank} differs from rank 0 in {what}; give all processes of a learner the same")


def facts_of(spec: JobSpec, layout: Layout) -> dict[str, str]:
    """What must be the same in all processes, by name."""
    # What may change while a job runs may reach pods at different times.
    fields = {"model", "data", "task", "loop", "training"}
    trained = spec.model_dump_json(include=fields, exclude={"training": {"tokens"}})
    return {
        "diloco": __version__,
        "torch": torch.__version__,
        "job": hashlib.sha256(trained.encode()).hexdigest()[:16],
        "layout": layout.cut[:16],
    }


def _there(rank: int) -> str:
    """The key that a process sets."""
    return f"there/{rank}"
