"""The processes of a learner that call one loop, and what they say to each other about its session.

Their groups are not the loop's: that makes the default one when it likes, with the time limit it likes, and may destroy
it. Theirs have no limit, as the first process may wait for the syncer for as long as its region is cut off.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, Store  # type: ignore[attr-defined]  # documented

from diloco.learner.data.source import DataStoppedError
from diloco.learner.unit.collectives.channels import Channels
from diloco.learner.unit.collectives.world import NO_LIMIT, collected
from diloco.learner.unit.joining import await_all, compare, meeting_at, store_at
from diloco.learner.unit.starting import Unit
from diloco.runtime.process.launchers import as_torchrun

_LONGEST_PAUSE_SECONDS: Final = 1e-3
_NOTE_SECONDS: Final = 0.5
"""Who waits for so long says so, for those that give up, which wait for twice as long for it."""


class LateError(RuntimeError):
    """Some processes are not where the others wait for them; the text names them."""


class SessionWorld(Channels):
    """This process's connections to the others that call the loop."""

    def __init__(self, store: Store, rank: int, ranks: int, device: torch.device) -> None:
        """Connect with all, which are there.

        Raises:
            RuntimeError: another one ended meanwhile.
        """
        control, saving = (
            ProcessGroupGloo(PrefixStore(name, store), rank, ranks, NO_LIMIT) for name in ("control", "saving")
        )
        super().__init__(rank, ranks, device, control, saving)
        self._store, self._arrivals = store, 0
        self._noted: str | None = None
        """What this process has said of an earlier arrival."""

    def spread(self, tensor: Tensor) -> Tensor:
        """See `Channels`."""
        if self._has_device_group():
            dist.broadcast(tensor, 0)
            return tensor
        host = tensor.cpu()
        self.share(host)
        return tensor.copy_(host)

    def collect(self, given: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """See `Channels`."""
        if self._has_device_group():
            return collected(given, counts, self.rank)
        if self.rank:
            if counts[self.rank]:
                self._control.send([given.cpu()], 0, 0).wait()
            return []
        every = [given, *(torch.empty(count) for count in counts[1:])]
        for rank, one in enumerate(every):
            if rank and len(one):
                self._control.recv([one], rank, 0).wait()
        return [one.to(self.device) for one in every]

    def _has_device_group(self) -> bool:
        """Whether the loop's default group, which it has for its own collectives, can carry tensors on the device."""
        return self.device.type != "cpu" and dist.is_initialized()

    def every(
        self, numbers: Sequence[int], patience_seconds: float, stopping: Callable[[], bool] = lambda: False
    ) -> list[list[int]]:
        """The ``numbers``, equally many, of all processes, by rank, once all have called this.

        Raises:
            LateError: some have not in this time.
            DataStoppedError: this process is asked to stop, says ``stopping``.
            RuntimeError: another one has ended.
        """
        self._arrivals += 1
        own = torch.tensor(numbers)
        every = [torch.empty_like(own) for _ in range(self.ranks)]
        work = self._control.allgather(every, own)
        began, pause, note = time.monotonic(), 5e-5, None
        while not work.is_completed():
            if stopping():
                raise DataStoppedError("stopped before all processes of this learner were in its session")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            waited = time.monotonic() - began
            if waited > _NOTE_SECONDS and note is None:
                note = self._note(self.rank)
                self._store.set(note, "")
            if waited > patience_seconds + 2 * _NOTE_SECONDS and (late := self._late()):
                raise LateError(named(late))
        work.wait()
        if self._noted is not None:  # all have come here, so none looks for it
            self._store.delete_key(self._noted)
        self._noted = note
        return [one.tolist() for one in every]

    def _late(self) -> list[int]:
        """Ranks that do not wait."""
        return [one for one in range(self.ranks) if not self._store.check([self._note(one)])]

    def _note(self, rank: int) -> str:
        return f"waits/{self._arrivals}/{rank}"


def named(ranks: Sequence[int]) -> str:
    """For messages."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


@dataclass(frozen=True)
class Peers:
    """The processes of a learner, as one of them sees them."""

    rank: int
    ranks: int
    processes: int
    """Of them, on this machine."""
    where: str
    """Where they meet."""
    checkpoints: Path
    """Folder of the learner's checkpoints on this machine."""
    store: Store
    release: Callable[[], None] = field(default=lambda: None)
    """In the first: lets the others end from now on."""

    def set_environment(self) -> None:
        """Say to libraries what torchrun would."""
        _, host, port = meeting_at(self.where)
        os.environ.update(as_torchrun(self.rank, self.ranks, self.processes, host, port))

    def connected(
        self, facts: dict[str, str], device: torch.device, seconds: float, stopping: Callable[[], bool]
    ) -> SessionWorld:
        """Wait until all have a session.

        Raises:
            LateError: some have none in this time.
            UnitError: this process differs from the first.
            DataStoppedError: it is asked to stop, says ``stopping``.
        """
        if missing := await_all(self.store, self.rank, self.ranks, seconds, stopping):
            raise LateError(named(missing))
        compare(self.store, self.rank, self.ranks, facts)
        return SessionWorld(self.store, self.rank, self.ranks, device)


def first_of(unit: Unit, processes: int, checkpoints: Path) -> Peers:
    """Those of a learner's first process, which serves the store from now on."""
    store = store_at(unit.store, unit.ranks, unit.listening)
    return Peers(0, unit.ranks, processes, unit.store, checkpoints, store, unit.release)
