"""Which values of a fragment a process has, so that a fragment moves between processes as one flat tensor."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from diloco.core.fragments import Fragment, Layout, Slot
from diloco.model.sharded import Place, is_parted, part_of, place_of


class Box(NamedTuple):
    """What a slot of a fragment and a process's part of its parameter have in common, as a box of both."""

    name: str
    """Of the parameter."""
    slot: Slot
    inside: tuple[slice, ...]
    """Of the slot's tensor."""
    rows: slice
    """Of the process's part, which has all other dimensions to itself."""
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def of(self, flat: Tensor) -> Tensor:
        """In a fragment's flat values; a view."""
        piece = self.slot.tensor
        return flat[self.slot.offset : self.slot.offset + piece.numel].view(piece.shape)[self.inside]

    def of_part(self, part: Tensor) -> Tensor:
        """In the process's part; a view."""
        return part[self.rows] if part.dim() else part


class Scattered(NamedTuple):
    """The same of a part that is no box of its parameter, by indices."""

    name: str
    flat: Tensor
    """int64, of the elements in the fragment's flat values."""
    places: tuple[Tensor, ...]
    """int64, one tensor a dimension: of the elements in the process's part."""


def box_of(slot: Slot, place: Place) -> Box:
    """That of a slot and a part, which may be empty."""
    piece = slot.tensor
    if not piece.shape:
        return Box(piece.name, slot, (), slice(0), ())
    first = max(piece.first_row, place.first[0])
    stop = max(first, min(piece.first_row + piece.shape[0], place.first[0] + place.shape[0]))
    others = zip(place.first[1:], place.shape[1:], strict=True)
    inside = (slice(first - piece.first_row, stop - piece.first_row), *(slice(at, at + size) for at, size in others))
    rows = slice(first - place.first[0], stop - place.first[0])
    return Box(piece.name, slot, inside, rows, (stop - first, *place.shape[1:]))


class OwnBoxes:
    """Those of one process, for each fragment."""

    def __init__(self, layout: Layout, parameters: Mapping[str, Tensor]) -> None:
        """``parameters``: the trained ones, by name. Every process calls it."""
        self.places = {name: place_of(one) for name, one in parameters.items()}
        self._boxes: list[list[Box]] = []
        self._scattered: list[list[Scattered]] = []
        wanted = {name: _indices(parameters[name]) for name, place in self.places.items() if place.how}
        for fragment in layout.fragments:
            regular = [slot for slot in fragment.slots if slot.tensor.name not in wanted]
            self._boxes.append([box_of(slot, self.places[slot.tensor.name]) for slot in regular])
            others = [slot for slot in fragment.slots if slot.tensor.name in wanted]
            self._scattered.append([_scattered(slot, wanted[slot.tensor.name]) for slot in others])

    def taken(self, fragment: int, flat: Tensor) -> Tensor:
        """This process's values of a fragment's, flat, on their device."""
        boxes = [box.of(flat).reshape(-1) for box in self._boxes[fragment]]
        return torch.cat([*boxes, *(flat[one.flat.to(flat.device)] for one in self._scattered[fragment])])

    def read(self, fragment: int, parts: Mapping[str, Tensor]) -> Tensor:
        """The same of this process's parts of the parameters, in f32."""
        boxes = [box.of_part(parts[box.name]).reshape(-1) for box in self._boxes[fragment]]
        return torch.cat([*boxes, *(parts[one.name][one.places] for one in self._scattered[fragment])]).float()

    def write(self, fragment: int, taken: Tensor, parts: Mapping[str, Tensor]) -> None:
        """Write what was ``taken`` to this process's parts of the parameters."""
        at = 0
        for box in self._boxes[fragment]:
            box.of_part(parts[box.name]).copy_(taken[at : at + box.numel].view(box.shape))
            at += box.numel
        for one in self._scattered[fragment]:
            parts[one.name][one.places] = taken[at : at + len(one.flat)].to(parts[one.name].dtype)
            at += len(one.flat)


def first_givers(places: Sequence[Mapping[str, Place]], rank: int) -> frozenset[str]:
    """The parameters of which ``rank`` has what no process before it has. ``places``: by rank."""
    own = places[rank].items()
    return frozenset(name for name, place in own if all(before[name] != place for before in places[:rank]))


def given_boxes(fragment: Fragment, places: Mapping[str, Place], names: Iterable[str]) -> Iterator[Box]:
    """What a process gives of a fragment: its boxes of the parameters ``names``, in the order of slots."""
    return (box_of(slot, places[slot.tensor.name]) for slot in fragment.slots if slot.tensor.name in names)


def _indices(parameter: Tensor) -> Tensor:
    """Of each element of this process's part: its place in the whole, flattened."""
    every = torch.arange(parameter.numel(), device=parameter.device).view(parameter.shape)
    return part_of(every, parameter) if is_parted(parameter) else every


def _scattered(slot: Slot, indices: Tensor) -> Scattered:
    piece = slot.tensor
    flat = indices - piece.first_row * prod(piece.shape[1:])
    inside = (flat >= 0) & (flat < piece.numel)
    return Scattered(piece.name, flat[inside] + slot.offset, inside.nonzero(as_tuple=True))
