"""Cuts the model into fragments: tensors, packed greedily by size, so that none is much larger than the others.

Greedy packing (longest first onto the lightest fragment) keeps the largest within 4/3 of the best possible (Graham
1969). A large embedding or output layer is split by rows first; other tensors stay whole, because they are averaged by
their direction. The layout is a pure function of the tensors' names, shapes and kinds, so every process of a job gets
the same one; its digest is compared when two processes meet or a checkpoint is read. A digest of what training does not
change goes with it, as two base models may be cut alike.
"""

import hashlib
import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from math import ceil, prod
from typing import Final

WHOLE: Final = 1.4
"""An embedding is not split if it has at most this many times the elements that a piece may have (ours)."""
SMALLEST_PIECE: Final = 1 << 16
"""Elements that a piece may always have (ours): smaller ones take no less time on a link."""


class LayoutError(ValueError):
    """The model cannot be cut as asked, or two layouts differ."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A parameter tensor, or a piece of one: some of its rows. What the algorithm needs of it."""

    name: str
    """Of the parameter; pieces share it."""
    shape: tuple[int, ...]
    embedding: bool
    """Merged by the plain weighted mean, as the paper does with embeddings. Always so for pieces."""
    first_row: int = 0
    """The piece is this row of the parameter and those after it, ``shape[0]`` in all."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def plain(self) -> "TensorTable":
        """As plain values, of which ``TensorSpec(*plain)`` is made again."""
        values = (self.name, self.shape, self.embedding)
        return (*values, self.first_row) if self.first_row else values


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor's place in its fragment's flat f32 buffer: elements ``offset`` to ``offset + tensor.numel``."""

    tensor: TensorSpec
    offset: int


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of the model: tensors, one after the other in a flat buffer of ``numel`` elements."""

    index: int
    slots: tuple[Slot, ...]
    numel: int


TensorTable = tuple[str, tuple[int, ...], bool] | tuple[str, tuple[int, ...], bool, int]
"""A tensor: name, shape, whether it is an embedding, and the first row of a piece unless that is 0."""
FragmentTable = tuple[TensorTable, ...]
"""A fragment's tensors as plain values."""

_NUMEL_LIMIT = 1 << 53
_DIMENSIONS_LIMIT = 64


@dataclass(frozen=True)
class Layout:
    """All fragments of a model."""

    fragments: tuple[Fragment, ...]
    constants: str | None = None
    """Digest of the values that training does not change (frozen parameters, saved buffers), hexadecimal. Empty: there
    are none. None: only sizes are known."""

    @property
    def numel(self) -> int:
        """Trained parameters of the model."""
        return sum(self.numels)

    @property
    def numels(self) -> tuple[int, ...]:
        """Parameters of each fragment."""
        return tuple(fragment.numel for fragment in self.fragments)

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Each fragment's share of the model's parameters."""
        total = self.numel
        return tuple(numel / total for numel in self.numels)

    @property
    def table(self) -> tuple[FragmentTable, ...]:
        """The layout as plain values, which ``layout_from_table`` reads."""
        return tuple(tuple(slot.tensor.plain for slot in fragment.slots) for fragment in self.fragments)

    @cached_property
    def cut(self) -> str:
        """SHA-256 over names, shapes, kinds and places, hexadecimal."""
        plain = [
            [(*slot.tensor.plain[:3], slot.offset, *slot.tensor.plain[3:]) for slot in fragment.slots]
            for fragment in self.fragments
        ]
        return hashlib.sha256(json.dumps(plain).encode()).hexdigest()

    @property
    def digest(self) -> str:
        """``cut``, and if there are constants their digest after a full stop."""
        return f"{self.cut}.{self.constants}" if self.constants else self.cut

    def match(self, digest: str) -> "Match":
        """Compare with another layout's ``digest``; if only sizes are known, compare only the cut."""
        return match_digests(self.digest, digest if self.constants is not None else digest.partition(".")[0])


class Match(StrEnum):
    """How two layouts' digests compare."""

    SAME = "same"
    OTHER_CONSTANTS = "other constants"
    """Cut alike, with other frozen parameters or buffers."""
    OTHER_CUT = "other cut"


def match_digests(ours: str, theirs: str) -> Match:
    """Compare a model's ``Layout.digest`` with one that a file or a peer names."""
    if ours == theirs:
        return Match.SAME
    return Match.OTHER_CONSTANTS if ours.partition(".")[0] == theirs.partition(".")[0] else Match.OTHER_CUT


def layout_from_table(table: Sequence[FragmentTable]) -> Layout:
    """The layout with this ``table``, which may come from an untrusted file; sizes only.

    Raises:
        LayoutError: it is not a model: a fragment or tensor without elements, a name twice, or too many parameters.
    """
    fragments = [[TensorSpec(*plain) for plain in part] for part in table]
    tensors = [tensor for part in fragments for tensor in part]
    if not fragments or not all(fragments) or len({(one.name, one.first_row) for one in tensors}) != len(tensors):
        raise LayoutError("a fragment without tensors, or two tensors of one name")
    for tensor in tensors:
        sizes = (*tensor.shape, tensor.first_row + 1)
        if len(tensor.shape) > _DIMENSIONS_LIMIT or any(not 1 <= size <= _NUMEL_LIMIT for size in sizes):
            raise LayoutError(f"tensor {tensor.name!r} has a shape that no tensor has")
    layout = Layout(tuple(_fragment(index, part) for index, part in enumerate(fragments)))
    if layout.numel > _NUMEL_LIMIT:
        raise LayoutError(f"{layout.numel} parameters")
    return layout


def partition(tensors: list[TensorSpec], count: int, output: str = "") -> Layout:
    """Cut ``tensors``, which are whole, into ``count`` fragments.

    An embedding larger than ``WHOLE`` allows is first split into the fewest pieces of which none has more elements than
    the mean fragment, the largest tensor that stays whole, or ``SMALLEST_PIECE``, whichever has most. So is the weight
    named ``output``, of an output layer; its pieces are then merged by the plain mean. Within a fragment tensors keep
    the order in which they were given. Fragments are numbered so that the one holding the earliest tensor comes first.

    Raises:
        LayoutError: fewer tensors than fragments, a name twice, or a tensor without elements.
    """
    if not 1 <= count <= len(tensors):
        raise LayoutError(
            f"sync.fragments is {count}, but the model has {len(tensors)} parameter tensors: use 1 to {len(tensors)}"
        )
    names = [tensor.name for tensor in tensors]
    if len(set(names)) != len(names):
        raise LayoutError("the model has two parameters of one name")
    empty = [tensor.name for tensor in tensors if tensor.numel == 0]
    if empty:
        raise LayoutError(f"parameter {empty[0]} has no elements")
    tensors = _in_pieces(tensors, count, output)
    bins: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, 0, index) for index in range(count)]
    for position in sorted(range(len(tensors)), key=lambda i: (-tensors[i].numel, i)):
        load, members, index = heapq.heappop(loads)
        bins[index].append(position)
        heapq.heappush(loads, (load + tensors[position].numel, members + 1, index))
    ordered = sorted((sorted(members) for members in bins), key=lambda members: members[0])
    return Layout(tuple(_fragment(index, [tensors[i] for i in members]) for index, members in enumerate(ordered)))


def _in_pieces(tensors: list[TensorSpec], count: int, output: str) -> list[TensorSpec]:
    whole = [tensor.numel for tensor in tensors if not tensor.embedding and tensor.name != output]
    limit = max(sum(tensor.numel for tensor in tensors) / count, SMALLEST_PIECE, *whole)
    pieces: list[TensorSpec] = []
    for tensor in tensors:
        if tensor.numel <= WHOLE * limit or not (tensor.embedding or tensor.name == output):
            pieces.append(tensor)
            continue
        rows, *others = tensor.shape
        number = min(rows, ceil(tensor.numel / limit))
        starts = [rows * index // number for index in range(number + 1)]
        pieces += [
            replace(tensor, shape=(stop - start, *others), embedding=True, first_row=start)
            for start, stop in pairwise(starts)
        ]
    return pieces


def _fragment(index: int, tensors: list[TensorSpec]) -> Fragment:
    slots: list[Slot] = []
    offset = 0
    for tensor in tensors:
        slots.append(Slot(tensor, offset))
        offset += tensor.numel
    return Fragment(index, tuple(slots), offset)
