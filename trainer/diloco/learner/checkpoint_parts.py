"""The parts of a learner's checkpoint: a file of each process, and what each reads of all of them.

A part is a safetensors file. Where the processes share out a tensor, a part has a box of it, and its header says which.
So a process that is started as one of another number of processes reads what it needs from several parts, and no more.
"""

import json
import operator
import shutil
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from diloco.model.sharded import Place
from diloco.model.tensor_file import TensorFile, opened, write_tensor_file
from diloco.runtime.files import UnusableFileError
from diloco.runtime.json_text import parse_json

TENSORS_FILE: Final = "state.safetensors"
"""The first process's part."""
PARTS_FOLDER: Final = "parts"
"""Where the parts of the others lie, in a folder of the checkpoint's name each."""
_OPTIMIZER: Final = "optimizer."
_RESIDUAL: Final = "residual."
_PLACES: Final = "places"

Places = Mapping[str, Place]
"""Where this process's part of each tensor of the optimizer's state lies."""


class Fault(IntEnum):
    """What is wrong with a part."""

    MISSING = 0
    DAMAGED = 1
    UNUSABLE = 2

    @property
    def text(self) -> str:
        """For people."""
        return ("is missing", "is damaged, or of another checkpoint", "does not fit this inner optimizer")[self]


class PartError(ValueError):
    """A part cannot be used; the text is one line that names it."""

    def __init__(self, index: int, count: int, fault: Fault) -> None:
        """``index``: of the part, of ``count``."""
        self.index, self.fault = index, fault
        super().__init__(f"{part_name(index, count)} {fault.text}")


class _FaultError(Exception):
    def __init__(self, fault: Fault) -> None:
        self.fault = fault


def part_name(index: int, count: int) -> str:
    """The file name of a part."""
    return f"state-{index:05d}-of-{count:05d}.safetensors" if index else TENSORS_FILE


def part_paths(directory: Path, number: int, count: int) -> list[Path]:
    """The files of checkpoint ``number`` in ``directory``."""
    folder = f"{number:08d}"
    others = [directory / PARTS_FOLDER / folder / part_name(index, count) for index in range(1, count)]
    return [directory / folder / TENSORS_FILE, *others]


def remove_parts(directory: Path, numbers: Sequence[int]) -> None:
    """Remove the other processes' parts, on this node, of checkpoints that are not among ``numbers``."""
    kept = {f"{number:08d}" for number in numbers}
    for path in (directory / PARTS_FOLDER).glob("*"):
        if path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


def write_part(path: Path, optimizer: Mapping[str, Tensor], residuals: Mapping[int, Tensor], places: Places) -> str:
    """Write a part, and wait until it is on disk; returns its digest.

    Raises:
        OSError, ValueError: it cannot be written.
    """
    tensors = {f"{_OPTIMIZER}{name}": tensor for name, tensor in optimizer.items()}
    tensors |= {f"{_RESIDUAL}{fragment}": tensor for fragment, tensor in residuals.items()}
    parted = {
        name: [place.first, place.whole, place.how]
        for name, place in places.items()
        if name in optimizer and place.parted
    }
    return write_tensor_file(path, tensors, {_PLACES: json.dumps(parted)} if parted else None)


class Found(NamedTuple):
    """What was read of a checkpoint's parts."""

    optimizer: dict[str, Tensor]
    """This process's part of the optimizer's state."""
    residuals: dict[int, Tensor]
    """By fragment, flat f32; empty in other processes than the first."""


def read_whole(path: Path, digest: str, index: int = 0, count: int = 1) -> Found:
    """All that is in part ``index`` of ``count``.

    Raises:
        PartError: it cannot be used.
    """
    try:
        with opened(path) as file:
            residuals = _residuals(file)
            read = file.read(dict.fromkeys(file.tensors, ()), digest)
    except UnusableFileError:
        raise PartError(index, count, _broken(path)) from None
    except ValueError:
        raise PartError(index, count, Fault.UNUSABLE) from None
    return Found({name: read[_OPTIMIZER + name] for name in _names(file)}, _by_fragment(read, residuals))


def read_parts(paths: Sequence[Path], digests: Sequence[str], own: int, places: Places) -> Found:
    """What lies at ``places`` of the optimizer's state, in the parts at ``paths``; for the first process the residuals.

    A part is read only if something is still to be found and it has some of that. ``digests``: empty for a process that
    has written none, since it had copies only. ``own``: index of the part to look at first.

    Raises:
        PartError: something is not to be found; names the first part that cannot be used.
    """
    gathered = _Gathered(places)
    first: PartError | None = None
    for index in sorted(range(len(paths)), key=lambda index: index != own):
        if digests[index] and not gathered.complete:
            try:
                gathered.take(paths[index], digests[index], with_residuals=index == own == 0)
            except _FaultError as error:
                first = first or PartError(index, len(paths), error.fault)
                if index == own == 0:  # no other part has the residuals
                    raise first from None
    if not gathered.complete:
        raise first or PartError(min(own, len(paths) - 1), len(paths), Fault.UNUSABLE)
    return Found(gathered.tensors, gathered.residuals)


class _Piece(NamedTuple):
    """What a part has of a tensor that is still to be found."""

    name: str
    theirs: tuple[slice, ...]
    """Which elements of the part's tensor."""
    ours: tuple[slice, ...]
    """Where they belong."""


class _Gathered:
    """What was found so far."""

    def __init__(self, places: Places) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.residuals: dict[int, Tensor] = {}
        self._places = places
        self._left: dict[str, Tensor] = {}
        """True where nothing has been found yet."""
        self._begun = False

    @property
    def complete(self) -> bool:
        """Whether nothing is to be found any more. Every part names all tensors, so one has to be read."""
        return self._begun and not self._left

    def take(self, path: Path, digest: str, *, with_residuals: bool) -> None:
        """Take from a part what is still to be found."""
        try:
            with opened(path) as file:
                try:
                    residuals = _residuals(file) if with_residuals else {}
                    pieces = self._pieces(file)
                except ValueError:
                    file.read({}, digest)
                    raise _FaultError(Fault.UNUSABLE) from None
                if pieces == [] and self._begun:
                    return
                boxes = {_OPTIMIZER + piece.name: piece.theirs for piece in pieces} | dict.fromkeys(residuals, ())
                read = file.read(boxes, digest)
        except UnusableFileError:
            raise _FaultError(_broken(path)) from None
        self.residuals |= _by_fragment(read, residuals)
        self._put(file, pieces, read)

    def _pieces(self, file: TensorFile) -> list[_Piece]:
        """What a part has of what is still to be found; ValueError: it does not fit."""
        said = parse_json(file.metadata.get(_PLACES, "{}"))
        pieces = []
        for name in _names(file):
            own, (dtype, shape) = self._places.get(name), file.tensors[_OPTIMIZER + name]
            if own is None or dtype != torch.float32 or not isinstance(said, dict):
                raise ValueError(name)
            theirs = _place(said.get(name), shape)
            if theirs.how != own.how or (self._begun and name not in self._left):
                continue
            if theirs.whole != own.whole:
                raise ValueError(name)
            low = [max(pair) for pair in zip(own.first, theirs.first, strict=True)]
            high = [min(a + b, c + d) for a, b, c, d in zip(*own[:2], *theirs[:2], strict=True)]
            if all(a < b for a, b in zip(low, high, strict=True)):
                pieces.append(_Piece(name, *(_box(low, high, place.first) for place in (theirs, own))))
        return pieces

    def _put(self, file: TensorFile, pieces: Sequence[_Piece], read: Mapping[str, Tensor]) -> None:
        for piece in pieces:
            values = read[_OPTIMIZER + piece.name]
            if values.shape == self._places[piece.name].shape:
                self.tensors[piece.name] = values
                self._left.pop(piece.name, None)
                continue
            self._expect(piece.name)
            self.tensors[piece.name][piece.ours] = values
            self._left[piece.name][piece.ours] = False
            if not self._left[piece.name].any():
                del self._left[piece.name]
        if not self._begun:
            for name in _names(file):
                self._expect(name)
            self._begun = True

    def _expect(self, name: str) -> None:
        """Take note that there is a tensor."""
        if name in self.tensors:
            return
        self.tensors[name] = torch.zeros(self._places[name].shape)
        if self.tensors[name].numel():
            self._left[name] = torch.ones(self._places[name].shape, dtype=torch.bool)


def _names(file: TensorFile) -> list[str]:
    """Names of the optimizer's tensors in a part."""
    return [name.removeprefix(_OPTIMIZER) for name in file.tensors if name.startswith(_OPTIMIZER)]


def _residuals(file: TensorFile) -> dict[str, int]:
    """Fragments of the residuals in a part, by the tensors' names; ValueError: it has something else."""
    names = [name for name in file.tensors if not name.startswith(_OPTIMIZER)]
    return {name: int(name.removeprefix(_RESIDUAL)) for name in names}


def _by_fragment(read: Mapping[str, Tensor], fragments: Mapping[str, int]) -> dict[int, Tensor]:
    return {fragment: read[name] for name, fragment in fragments.items()}


def _broken(path: Path) -> Fault:
    return Fault.DAMAGED if path.is_file() else Fault.MISSING


def _box(low: Sequence[int], high: Sequence[int], first: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(a - c, b - c) for a, b, c in zip(low, high, first, strict=True))


def _place(said: Any, shape: tuple[int, ...]) -> Place:
    """Where a part's tensor of ``shape`` lies, as its header says; ValueError: it cannot lie there."""
    if said is None:
        return Place((0,) * len(shape), shape, shape)
    try:
        first, whole, how = said
        place = Place(tuple(map(operator.index, first)), shape, tuple(whole), how)
        inside = all(0 <= a <= a + b <= c for a, b, c in zip(*place[:3], strict=True))
    except TypeError as error:
        raise ValueError(said) from error
    if not inside:
        raise ValueError(said)
    return place


class Others:
    """The other processes of a learner, which write and read their parts of its checkpoints at the same time: none."""

    def __init__(self, places: Places) -> None:
        self.places = places

    def written(self, begin: Callable[[], list[int]], write: Callable[[], str]) -> tuple[int, list[str]]:
        """Write a checkpoint; returns its number and the digests of all parts, this process's first.

        ``begin``: returns the new checkpoint's number, then those of the earlier ones. ``write``: writes this process's
        part and returns its digest.

        Raises:
            OSError: another process cannot write its part; and what these raise.
        """
        return begin()[0], [write()]

    def read(self, directory: Path, number: int, digests: Sequence[str], steps: int) -> Found:
        """This process's part of a checkpoint of ``steps`` optimizer steps; the others restore theirs.

        Raises:
            PartError: one of the processes cannot use it; then none has restored anything.
        """
        del steps
        paths = part_paths(directory, number, len(digests))
        if len(digests) == 1:  # it may be of an optimizer of the user's own
            return read_whole(paths[0], digests[0])
        return read_parts(paths, digests, 0, self.places)
