"""The model cut into fragments: whole tensors, packed greedily by size, so that none is much larger.

Greedy packing (longest first onto the lightest fragment) keeps the largest within 4/3 of the best possible (Graham
1969). The layout is a pure function of the tensors' names, shapes and kinds, so every process of a job arrives at the
same one; its digest is compared where two processes meet or a checkpoint is read.
"""

import hashlib
import heapq
import json
from dataclasses import dataclass
from functools import cached_property
from math import prod


class LayoutError(ValueError):
    """The model cannot be cut as asked, or two layouts differ."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A parameter tensor: what the algorithm must know of it."""

    name: str
    shape: tuple[int, ...]
    embedding: bool
    """Merged by the plain weighted mean, as the paper does with embeddings."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor's place in its fragment's flat f32 buffer: elements ``offset`` to ``offset + tensor.numel``."""

    tensor: TensorSpec
    offset: int


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of the model: whole tensors, one after the other in a flat buffer of ``numel`` elements."""

    index: int
    slots: tuple[Slot, ...]
    numel: int


@dataclass(frozen=True)
class Layout:
    """All fragments of a model."""

    fragments: tuple[Fragment, ...]

    @property
    def numel(self) -> int:
        """Parameters of the model."""
        return sum(fragment.numel for fragment in self.fragments)

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """Each fragment's share of the model's parameters."""
        total = self.numel
        return tuple(fragment.numel / total for fragment in self.fragments)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over names, shapes, kinds and places, hexadecimal."""
        plain = [
            [(slot.tensor.name, slot.tensor.shape, slot.tensor.embedding, slot.offset) for slot in fragment.slots]
            for fragment in self.fragments
        ]
        return hashlib.sha256(json.dumps(plain).encode()).hexdigest()


def partition(tensors: list[TensorSpec], count: int) -> Layout:
    """Cut ``tensors`` into ``count`` fragments.

    Within a fragment tensors keep the order in which they were given. Fragments are numbered so that the one holding
    the earliest tensor comes first.

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
    bins: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, 0, index) for index in range(count)]
    for position in sorted(range(len(tensors)), key=lambda i: (-tensors[i].numel, i)):
        load, members, index = heapq.heappop(loads)
        bins[index].append(position)
        heapq.heappush(loads, (load + tensors[position].numel, members + 1, index))
    ordered = sorted((sorted(members) for members in bins), key=lambda members: members[0])
    return Layout(tuple(_fragment(index, [tensors[i] for i in members]) for index, members in enumerate(ordered)))


def _fragment(index: int, tensors: list[TensorSpec]) -> Fragment:
    slots: list[Slot] = []
    offset = 0
    for tensor in tensors:
        slots.append(Slot(tensor, offset))
        offset += tensor.numel
    return Fragment(index, tuple(slots), offset)
