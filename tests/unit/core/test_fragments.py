import pytest

from diloco.core.fragments import (
    FragmentTable,
    Layout,
    LayoutError,
    Match,
    TensorSpec,
    layout_from_table,
    match_digests,
    partition,
)


def tensors(*sizes: int) -> list[TensorSpec]:
    return [TensorSpec(f"t{index}", (size,), embedding=False) for index, size in enumerate(sizes)]


def test_tensors_keep_their_order_and_lie_one_after_the_other() -> None:
    layout = partition(tensors(5, 1, 7, 2, 3), 2)
    for fragment in layout.fragments:
        names = [slot.tensor.name for slot in fragment.slots]
        assert names == sorted(names)
        end = 0
        for slot in fragment.slots:
            assert slot.offset == end
            end += slot.tensor.numel
        assert fragment.numel == end


def test_fragments_are_numbered_by_their_earliest_tensor() -> None:
    layout = partition(tensors(1, 9, 1, 9, 1), 3)
    assert [fragment.index for fragment in layout.fragments] == [0, 1, 2]
    first = [fragment.slots[0].tensor.name for fragment in layout.fragments]
    assert first == sorted(first)
    assert first[0] == "t0"


def test_one_tensor_a_fragment_is_the_finest_cut() -> None:
    layout = partition(tensors(3, 2, 1), 3)
    assert [fragment.numel for fragment in layout.fragments] == [3, 2, 1]
    assert layout.numel == 6
    assert layout.shares == (3 / 6, 2 / 6, 1 / 6)


def test_a_scalar_has_one_element() -> None:
    assert TensorSpec("scale", (), embedding=False).numel == 1


@pytest.mark.parametrize("count", [0, -1, 4])
def test_more_fragments_than_tensors_are_refused(count: int) -> None:
    with pytest.raises(
        LayoutError, match=f"sync.fragments is {count}, but the model has 3 parameter tensors: use 1 to 3"
    ):
        partition(tensors(1, 2, 3), count)


def test_a_name_twice_is_refused() -> None:
    with pytest.raises(LayoutError, match="two parameters of one name"):
        partition([*tensors(1), *tensors(2)], 1)


def test_a_tensor_without_elements_is_refused() -> None:
    with pytest.raises(LayoutError, match="parameter t1 has no elements"):
        partition(tensors(1, 0), 1)


def test_the_digest_tells_layouts_apart_by_everything_that_matters() -> None:
    base = [TensorSpec("a", (2, 3), embedding=False), TensorSpec("b", (4,), embedding=False)]
    others = [
        [TensorSpec("c", (2, 3), embedding=False), base[1]],
        [TensorSpec("a", (3, 2), embedding=False), base[1]],
        [TensorSpec("a", (2, 3), embedding=True), base[1]],
        [base[1], base[0]],
    ]
    digests = {partition(specs, 1).digest for specs in [base, *others]} | {partition(base, 2).digest}
    assert len(digests) == len(others) + 2
    assert partition(list(base), 1).digest in digests


def test_the_largest_tensors_are_packed_first() -> None:
    assert sorted(fragment.numel for fragment in partition(tensors(1, 1, 1, 3), 2).fragments) == [3, 3]
    assert sorted(fragment.numel for fragment in partition(tensors(2, 3, 2, 2, 3), 2).fragments) == [5, 7]


def test_tensors_of_one_size_are_spread_evenly_in_their_order() -> None:
    layout = partition(tensors(4, 4, 4, 4), 2)
    assert [[slot.tensor.name for slot in one.slots] for one in layout.fragments] == [["t0", "t2"], ["t1", "t3"]]


def test_of_fragments_of_one_size_that_with_fewer_tensors_takes_the_next() -> None:
    layout = partition(tensors(4, 2, 2, 1), 2)
    assert [[slot.tensor.name for slot in one.slots] for one in layout.fragments] == [["t0", "t3"], ["t1", "t2"]]


def one(*shape: int, name: str = "a") -> FragmentTable:
    """A fragment of one tensor."""
    return ((name, shape, False),)


@pytest.mark.parametrize(
    ("table", "numel"),
    [
        ((one(),), 1),
        ((one(1),), 1),
        ((one(2, 3), one(4, name="b")), 10),
        ((one(*[1] * 64),), 1),
        ((one(2**53),), 2**53),
    ],
)
def test_a_layout_is_made_of_its_table_again(table: tuple[FragmentTable, ...], numel: int) -> None:
    layout = layout_from_table(table)
    assert (layout.table, layout.numel, layout.constants) == (table, numel, None)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ((), "a fragment without tensors"),
        (((),), "a fragment without tensors"),
        ((one(1), ()), "a fragment without tensors"),
        ((one(1), one(2)), "two tensors of one name"),
        ((one(*[1] * 65),), "tensor 'a' has a shape"),
        ((one(3, 0),), "tensor 'a' has a shape"),
        ((one(3, -1),), "tensor 'a' has a shape"),
        ((one(2**53 + 1),), "tensor 'a' has a shape"),
        ((one(2**52), one(2**52 + 1, name="b")), f"{2**53 + 1} parameters"),
    ],
)
def test_a_table_of_no_model_is_refused(table: tuple[FragmentTable, ...], problem: str) -> None:
    with pytest.raises(LayoutError, match=problem):
        layout_from_table(table)


@pytest.mark.parametrize(
    ("constants", "theirs", "match"),
    [
        ("c0", "{cut}.c0", Match.SAME),
        ("c0", "{cut}.c1", Match.OTHER_CONSTANTS),
        ("c0", "{cut}", Match.UNKNOWN),  # an earlier version wrote it
        ("c0", "other.c0", Match.OTHER_CUT),
        ("", "{cut}", Match.SAME),
        ("", "{cut}.c1", Match.OTHER_CONSTANTS),
        (None, "{cut}.c1", Match.SAME),  # only sizes are known here
        (None, "{cut}", Match.SAME),
        (None, "other", Match.OTHER_CUT),
    ],
)
def test_layouts_are_compared_by_their_cut_and_their_constants(
    constants: str | None, theirs: str, match: Match
) -> None:
    layout = Layout(partition(tensors(1, 2), 1).fragments, constants)
    assert layout.digest == (f"{layout.cut}.{constants}" if constants else layout.cut)
    assert layout.match(theirs.format(cut=layout.cut)) is match


def test_digests_are_compared_without_a_layout() -> None:
    assert match_digests("cut.c0", "cut") is Match.UNKNOWN
    assert match_digests("cut.c0", "cut.c1") is Match.OTHER_CONSTANTS
