"""Which values of a fragment a process has: together the processes have each exactly once."""

import math

import pytest
import torch

from diloco.core.fragments import Fragment, Slot, TensorSpec
from diloco.learner.unit.collectives.boxes import _scattered, box_of, first_givers, given_boxes
from diloco.model.sharded import Place

WIDE = TensorSpec("wide", (5, 4), embedding=False)
PIECE = TensorSpec("rows", (3, 2), embedding=True, first_row=2)
LONE = TensorSpec("lone", (), embedding=False)


def fragment_of(*tensors: TensorSpec) -> Fragment:
    slots, offset = [], 0
    for one in tensors:
        slots.append(Slot(one, offset))
        offset += one.numel
    return Fragment(0, tuple(slots), offset)


def rows(whole: tuple[int, ...], rank: int, ranks: int) -> Place:
    """As torch shards rows: the last ranks may have fewer, or none."""
    each = math.ceil(whole[0] / ranks)
    first = min(rank * each, whole[0])
    return Place((first, *[0] * (len(whole) - 1)), (min(each, whole[0] - first), *whole[1:]), whole)


def columns(whole: tuple[int, ...], rank: int, ranks: int) -> Place:
    each = whole[1] // ranks
    return Place((0, rank * each), (whole[0], each), whole)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_all_processes_together_have_each_value_once(ranks: int) -> None:
    fragment = fragment_of(PIECE, LONE, WIDE)
    shapes = {"rows": (9, 2), "wide": (5, 4)}
    places = [{name: rows(shape, rank, ranks) for name, shape in shapes.items()} for rank in range(ranks)]
    places = [one | {"lone": Place((), (), ())} for one in places]
    seen = torch.zeros(fragment.numel)
    for rank in range(ranks):
        for box in given_boxes(fragment, places[rank], first_givers(places, rank)):
            box.of(seen).add_(1)
    assert seen.tolist() == [1.0] * fragment.numel


@pytest.mark.parametrize("parted", [rows, columns])
def test_a_box_is_the_same_values_in_the_fragment_and_in_the_part(parted: object) -> None:
    fragment, values = fragment_of(LONE, WIDE), torch.arange(21.0)
    whole = values[1:].view(5, 4)
    for rank in range(2):
        place = parted((5, 4), rank, 2)  # type: ignore[operator]
        box = box_of(fragment.slots[1], place)
        part = torch.zeros(place.shape)
        box.of_part(part).copy_(box.of(values))
        (first, left), (height, width) = place.first, place.shape
        assert torch.equal(part, whole[first : first + height, left : left + width])


def test_a_piece_of_rows_leaves_the_others_of_a_part_as_they_are() -> None:
    box = box_of(Slot(PIECE, 0), Place((4, 0), (5, 2), (9, 2)))
    part = torch.zeros(5, 2)
    box.of_part(part).copy_(box.of(torch.arange(1.0, 7.0)))
    assert part.tolist() == [[5.0, 6.0], *[[0.0, 0.0]] * 4]


def test_copies_give_nothing_that_one_before_them_has() -> None:
    places = [{"a": rows((4, 1), rank % 2, 2)} for rank in range(4)]
    assert [first_givers(places, rank) for rank in range(4)] == [{"a"}, {"a"}, set(), set()]


def test_a_part_that_is_no_box_is_found_by_indices() -> None:
    every = torch.arange(18).view(9, 2)
    mine = every[[1, 3, 5]]
    found = _scattered(Slot(PIECE, 10), mine)
    assert found.flat.tolist() == [10 + at for at in (2, 3)]
    part = torch.zeros(3, 2)
    part[found.places] = torch.tensor([7.0, 8.0])
    assert part.tolist() == [[0.0, 0.0], [7.0, 8.0], [0.0, 0.0]]
