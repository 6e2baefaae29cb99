"""Checkpoints of a learner of several processes: each writes and reads its own part, and all or none count.

The snapshots are taken on order, between two steps. Threads write them, connected by a group of their own: the first
process tells the number, each writes its part, and the first names the checkpoint once all parts are on disk.
"""

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from torch import Tensor

from diloco.learner.checkpoint import CheckpointWriteError, LearnerCheckpoint
from diloco.learner.checkpoint_parts import (
    Fault,
    Found,
    Others,
    PartError,
    Places,
    part_paths,
    read_parts,
    read_whole,
    remove_parts,
    write_part,
)
from diloco.learner.checkpoint_writer import CheckpointWriter
from diloco.learner.training.devices.torch_threads import start_worker
from diloco.learner.training.fragment_trainer import TrainerState
from diloco.learner.unit.collectives.channels import Channels
from diloco.learner.unit.orders import Op, Order
from diloco.model.entrypoint import one_line
from diloco.runtime.files import fsync

_NO_FAULT: Final = 1 << 40


class Restored(Protocol):
    """What keeps a process's part of a checkpoint: an optimizer, and what a loop of the user's own saves."""

    @property
    def steps(self) -> int:
        """Of the optimizer."""

    def places(self) -> Places:
        """Where this process's part of each tensor lies. Empty: each process has tensors of its own."""

    def state(self) -> Mapping[str, Tensor]:
        """A copy in host memory."""

    def load_state(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Restore it; KeyError or ValueError: it is of something else."""

    def start_over(self) -> None:
        """Drop it."""


class OtherRanks(Others):
    """Those of a first process."""

    def __init__(self, places: Places, world: Channels) -> None:
        super().__init__(places)
        self._world = world

    def written(self, begin: Callable[[], list[int]], write: Callable[[], str]) -> tuple[int, list[str]]:
        """See `Others`."""
        numbers: list[int] = []
        digest: str | None = None
        try:
            try:
                numbers = begin()
            finally:  # whatever happens here, the others wait
                self._world.share_list(numbers, saving=True)
            try:
                digest = write()
            finally:
                digests = _all_digests(self._world, digest)
        except RuntimeError as error:
            raise OSError("another process of this learner has ended") from error
        if None in digests:
            raise OSError(f"process {digests.index(None)} of this learner could not write its part; its log says why")
        return numbers[0], [one for one in digests if one is not None]

    def read(self, directory: Path, number: int, digests: Sequence[str], steps: int) -> Found:
        """See `Others`."""
        self._world.tell(Order(Op.LOAD, number, steps))
        self._world.share_list([one for digest in digests for one in _packed(digest)])
        found, fault = _read(directory, number, digests, self._world.rank, self.places)
        _agree(self._world, fault, len(digests))
        return found


class RankCheckpoints:
    """In another process: its parts of the checkpoints in a directory."""

    def __init__(self, directory: Path, kept: Restored, world: Channels, processes: int) -> None:
        """``processes``: of this learner, on each of its nodes."""
        self._directory, self._kept, self._world = directory, kept, world
        self._failures: list[BaseException] = []
        self._places = kept.places()
        parted = not self._places or any(place.parted for place in self._places.values())
        self._writes = parted or world.rank % processes == 0  # of equal copies, one on a node
        self._writer = CheckpointWriter(self._write)
        start_worker("checkpoint", self._writer.run, self._failures.append)

    def save(self) -> None:
        """Have this process's part of the next checkpoint written."""
        for error in self._failures:
            raise error
        # The first process has seen the end of the write before, so this waits for a moment at most.
        self._writer.finish(self._snapshot, threading.TIMEOUT_MAX)

    def load(self, number: int, steps: int) -> None:
        """Restore this process's part of a checkpoint if all processes can restore theirs."""
        packed = self._world.share_list()
        digests = [_unpacked(packed[first : first + 4]) for first in range(0, len(packed), 4)]
        found, fault = _read(self._directory, number, digests, self._world.rank, self._places)
        try:
            self._kept.load_state(found.optimizer, steps)
        except (KeyError, ValueError):
            fault = fault or PartError(min(self._world.rank, len(digests) - 1), len(digests), Fault.UNUSABLE)
        try:
            _agree(self._world, fault, len(digests))
        except PartError:
            self._kept.start_over()

    def close(self) -> None:
        """Wait until everything is written."""
        self._writer.close()

    def _snapshot(self) -> LearnerCheckpoint:
        tensors, steps = self._kept.state() if self._writes else {}, self._kept.steps
        return LearnerCheckpoint(TrainerState(tensors, steps, steps, 0, 0), {})

    def _write(self, checkpoint: LearnerCheckpoint) -> None:
        numbers = self._world.share_list(saving=True)
        if not numbers:
            return
        digest: str | None = None
        try:
            digest = self._write_part(numbers, checkpoint)
        except (OSError, ValueError) as error:
            raise CheckpointWriteError(
                f"cannot write a part of a checkpoint in {self._directory} ({one_line(error)})"
            ) from error
        finally:
            _all_digests(self._world, digest)

    def _write_part(self, numbers: Sequence[int], checkpoint: LearnerCheckpoint) -> str:
        remove_parts(self._directory, numbers)
        if not self._writes:
            return ""
        path = part_paths(self._directory, numbers[0], self._world.ranks)[self._world.rank]
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = write_part(path, checkpoint.state.tensors, {}, self._places)
        fsync(*path.parents[:3])
        return digest


def _read(
    directory: Path, number: int, digests: Sequence[str], rank: int, places: Places
) -> tuple[Found, PartError | None]:
    paths = part_paths(directory, number, len(digests))
    try:
        if not places:
            return read_whole(paths[rank], digests[rank], rank, len(paths)), None
        return read_parts(paths, digests, rank, places), None
    except PartError as error:
        return Found({}, {}), error


def _agree(world: Channels, fault: PartError | None, parts: int) -> None:
    """In all processes, raise the fault of the first part in which any of them has found one."""
    least = world.least(_NO_FAULT if fault is None else fault.index * len(Fault) + fault.fault)
    if least != _NO_FAULT:
        index, kind = divmod(least, len(Fault))
        raise PartError(index, parts, Fault(kind))


def _all_digests(world: Channels, digest: str | None) -> list[str | None]:
    """Of all processes' parts, by rank; None: it could not be written."""
    every = world.all_saved([digest is not None, *_packed(digest or "")])
    return [_unpacked(packed) if written else None for written, *packed in every]


def _packed(digest: str) -> list[int]:
    """A digest as four integers; those of an empty text are zero."""
    return list(struct.unpack("<4q", bytes.fromhex(digest or "00" * 32)))


def _unpacked(packed: Sequence[int]) -> str:
    return struct.pack("<4q", *packed).hex() if any(packed) else ""
