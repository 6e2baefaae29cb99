"""How the processes of a learner find each other, and see that they are of one job and one version."""

import hashlib
from pathlib import Path

import torch
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]  # they are there, and documented

from diloco import __version__
from diloco.core.fragments import Layout
from diloco.learner.unit.world import NO_LIMIT, World
from diloco.spec import JobSpec


class UnitError(RuntimeError):
    """A process differs from the first of its learner; the text is one line."""


def file_store(path: Path, ranks: int) -> Store:
    """Where the processes of one machine meet."""
    store = FileStore(str(path), ranks)
    store.set_timeout(NO_LIMIT)
    return store


def joined(store: Store, rank: int, ranks: int, device: torch.device, facts: dict[str, str]) -> World:
    """Wait for all processes, and connect with them. ``facts``: see `facts_of`.

    Raises:
        UnitError: this process differs from the first.
        RuntimeError: another one has ended meanwhile.
    """
    every = facts | {"number of processes": str(ranks)}
    if rank == 0:
        for name, value in every.items():
            store.set(f"first/{name}", value)
    others = {name: told for name, value in every.items() if (told := store.get(f"first/{name}").decode()) != value}
    if others:
        what = ", ".join(f"{name} ({every[name]}, there {told})" for name, told in others.items())
        raise UnitError(f"rank {rank} differs from rank 0 in {what}; give all processes of a learner the same")
    return World(store, rank, ranks, device)


def facts_of(spec: JobSpec, layout: Layout) -> dict[str, str]:
    """What must be the same in all processes, by name."""
    return {
        "diloco": __version__,
        "torch": torch.__version__,
        "job": hashlib.sha256(spec.model_dump_json().encode()).hexdigest()[:16],
        "layout": layout.cut[:16],
    }
