"""Masks of blocks and dense ones say the same; a device on which blocks do not work gets a dense one."""

import pytest
import torch
from torch import Tensor

from diloco.model import document_mask
from diloco.model.document_mask import attend, block_mask, dense_mask

WIDTH = 16


def positions_of(*lengths: list[int]) -> Tensor:
    """Of rows that consist of documents of these lengths."""
    return torch.stack([torch.cat([torch.arange(one) for one in row]) for row in lengths])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    "positions",
    [
        positions_of([40]),
        positions_of([1, 2, 37], [40]),
        positions_of([150, 50], [3, 197], [128, 72]),
        # The first document of a row may have begun in the row before.
        positions_of([7, 13, 20])[:, 3:],
    ],
    ids=["one", "several", "larger than blocks", "cut"],
)
def test_attention_by_blocks_is_that_with_a_dense_mask(positions: Tensor) -> None:
    rows, length = positions.shape
    query, key, value = torch.randn(3, rows, 2, length, WIDTH, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        dense, blocks = (attend(query, key, value, make(positions)) for make in (dense_mask, block_mask))
    assert torch.allclose(dense, blocks, atol=1e-5)


def test_the_mask_is_dense_on_a_cpu() -> None:
    made = document_mask.document_mask(positions_of([3, 5]), WIDTH, torch.float32)
    assert isinstance(made, Tensor)
    assert made.shape == (1, 1, 8, 8)


def test_where_blocks_do_not_work_it_is_told_and_tried_once(caplog: pytest.LogCaptureFixture) -> None:
    # Torch has no backward pass of flex attention on a CPU.
    device = torch.device("cpu")
    assert not any(document_mask._blocks_work(device, WIDTH, torch.float32) for _ in range(2))
    (told,) = caplog.messages
    assert told.startswith("data.documentMask: a dense mask is used on cpu, as blocks do not work (")


def test_values_that_differ_are_noticed() -> None:
    dense = torch.tensor([1.0, -2.0])
    assert document_mask._near(dense, torch.tensor([1.05, -2.05]))
    assert not document_mask._near(dense, torch.tensor([1.0, -1.8]))
