"""Collects a fragment in the first process of a learner, as one flat tensor of each process that has some of it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from diloco.core.buffers import recycled
from diloco.core.fragments import Layout
from diloco.learner.unit.collectives.boxes import box_of, first_givers, given_boxes
from diloco.learner.unit.collectives.channels import Channels
from diloco.model.sharded import Place, whole


class Exchange:
    """All processes call each method, in the same order."""

    def __init__(self, module: nn.Module, layout: Layout, places: Mapping[str, Place], world: Channels) -> None:
        """``places``: of this process's parts of the trained parameters."""
        self._module, self._layout, self._world = module, layout, world
        numbers = [number for place in places.values() for number in (*place.first, *place.shape)]
        self._places = [_decoded(one, places) for one in world.all_have(numbers)]
        boxes = {name: place for name, place in places.items() if not place.how}
        self._names = [first_givers(self._places, rank) & boxes.keys() for rank in range(world.ranks)]
        """By rank: the parameters of which it gives its part. Those whose parts are no boxes are gathered by torch."""
        self._counts = [
            [sum(box.numel for box in given_boxes(one, *given)) for given in self._givers()] for one in layout.fragments
        ]

    def whole(self, fragment: int, parts: Mapping[str, Tensor]) -> Tensor | None:
        """In the first process all of a fragment, flat f32 on the device; in the others None.

        ``parts``: this process's, of the parameters.
        """
        wanted, device, rank = self._layout.fragments[fragment], self._world.device, self._world.rank
        own = given_boxes(wanted, self._places[rank], self._names[rank])
        given = _flat([box.of_part(parts[box.name]) for box in own], device)
        every = self._world.collect(given, self._counts[fragment])
        others = [slot for slot in wanted.slots if self._places[0][slot.tensor.name].how]
        gathered = [whole(self._module.get_parameter(slot.tensor.name)) for slot in others]
        if rank:
            return None
        flat = (
            recycled(wanted.numel, torch.float32) if device.type == "cpu" else torch.empty(wanted.numel, device=device)
        )
        for (places, names), values in zip(self._givers(), every, strict=True):
            at = 0
            for box in given_boxes(wanted, places, names):
                box.of(flat).copy_(values[at : at + box.numel].view(box.shape))
                at += box.numel
        for slot, values in zip(others, gathered, strict=True):
            all_rows = box_of(slot, Place((0,) * values.dim(), tuple(values.shape), tuple(values.shape)))
            all_rows.of(flat).copy_(all_rows.of_part(values))
        return flat

    def _givers(self) -> list[tuple[Mapping[str, Place], frozenset[str]]]:
        return list(zip(self._places, self._names, strict=True))


def _flat(values: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.cat([one.reshape(-1) for one in values]).float() if values else torch.empty(0, device=device)


def _decoded(numbers: Sequence[int], places: Mapping[str, Place]) -> dict[str, Place]:
    """Another process's places, from its numbers and this one's places."""
    found, at = {}, 0
    for name, place in places.items():
        size = len(place.shape)
        first, shape = tuple(numbers[at : at + size]), tuple(numbers[at + size : at + 2 * size])
        found[name] = place._replace(first=first, shape=shape)
        at += 2 * size
    return found
