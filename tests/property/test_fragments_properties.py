"""However a model is built, its fragments are the model, and no fragment is much larger than it must be."""

from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from diloco.core.fragments import SMALLEST_PIECE, TensorSpec, partition

sizes_of_models = st.lists(st.integers(1, 10_000), min_size=1, max_size=60)
sizes_of_small_models = st.lists(st.integers(1, 40), min_size=1, max_size=8)


def tensors(sizes: list[int]) -> list[TensorSpec]:
    """Tensors of these numbers of rows, so wide that embeddings among them may be split."""
    return [
        TensorSpec(f"t{index:02}", (size, SMALLEST_PIECE), embedding=index % 3 == 0) for index, size in enumerate(sizes)
    ]


def best_peak(sizes: list[int], count: int) -> int:
    """Size of the largest fragment in the best of all cuts."""
    cuts = product(range(count), repeat=len(sizes))
    return min(
        max(sum(s for s, b in zip(sizes, cut, strict=True) if b == bin_) for bin_ in range(count)) for cut in cuts
    )


@given(sizes_of_models, st.data())
def test_fragments_partition_the_model(sizes: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(sizes)))
    layout = partition(tensors(sizes), count)
    assert len(layout.fragments) == count
    held = [slot.tensor for fragment in layout.fragments for slot in fragment.slots]
    rows = dict.fromkeys((tensor.name for tensor in tensors(sizes)), 0)
    for piece in sorted(held, key=lambda piece: (piece.name, piece.first_row)):
        assert piece.first_row == rows[piece.name]
        rows[piece.name] += piece.shape[0]
    assert list(rows.values()) == sizes
    assert all(piece.embedding == (int(piece.name[1:]) % 3 == 0) for piece in held)
    assert layout.numel == SMALLEST_PIECE * sum(sizes)
    for fragment in layout.fragments:
        places = [(slot.offset, slot.offset + slot.tensor.numel) for slot in fragment.slots]
        assert places[0][0] == 0
        assert places[-1][1] == fragment.numel
        assert all(before[1] == after[0] for before, after in pairwise(places))


@given(sizes_of_small_models, st.integers(1, 3))
def test_the_largest_fragment_stays_within_four_thirds_of_the_best_peak(sizes: list[int], count: int) -> None:
    count = min(count, len(sizes))
    peak = max(fragment.numel for fragment in partition(tensors(sizes), count).fragments)
    assert 3 * peak <= 4 * SMALLEST_PIECE * best_peak(sizes, count)
