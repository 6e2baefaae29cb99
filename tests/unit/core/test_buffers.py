from collections.abc import Callable

import pytest
import torch

from diloco.core.buffers import _free, recycled

_ELEMENTS = 2_200_000
"""Of f32: 8.4 MiB."""


def buffer(elements: int = _ELEMENTS) -> torch.Tensor:
    return recycled(elements, torch.float32)


def test_what_is_lent_is_flat_and_of_the_length_asked_for() -> None:
    for count, dtype in ((3, torch.float32), (_ELEMENTS, torch.float32), (9_000_001, torch.uint8)):
        lent = recycled(count, dtype)
        assert (lent.shape, lent.dtype, lent.data_ptr() % 64) == ((count,), dtype, 0)


def test_memory_is_lent_again_once_nothing_refers_to_it() -> None:
    first = buffer()
    place = first.data_ptr()
    del first
    assert buffer().data_ptr() == place


@pytest.mark.parametrize(
    "reader",
    [
        lambda lent: lent[5:9],
        lambda lent: lent.view(torch.uint8),
        lambda lent: lent.detach(),
        lambda lent: lent.numpy(),
        lambda lent: lent.numpy().data.cast("B")[8:],
    ],
    ids=["a part", "its bytes", "another tensor of it", "its array", "a view on its memory"],
)
def test_memory_that_somebody_reads_is_not_lent_again(reader: Callable[[torch.Tensor], object]) -> None:
    _free.clear()
    lent = buffer()
    place, reads = lent.data_ptr(), reader(lent)
    del lent
    other = buffer()
    assert other.data_ptr() != place
    del reads
    assert place == buffer().data_ptr()


def test_fragments_that_differ_a_little_share_memory() -> None:
    place = (lent := buffer()).data_ptr()
    del lent
    assert buffer(_ELEMENTS + 1000).data_ptr() == place


def test_no_more_than_four_free_blocks_of_a_size_are_kept() -> None:
    many = [buffer() for _ in range(9)]
    del many
    assert max(len(blocks) for blocks in _free.values()) == 4
