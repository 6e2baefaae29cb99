import pytest

from diloco.core.fragments import (
    SMALLEST_PIECE,
    FragmentTable,
    Layout,
    LayoutError,
    Match,
    TensorSpec,
    layout_from_table,
    partition,
)


def tensors(*sizes: int) -> list[TensorSpec]:
    return [TensorSpec(f"t{index}", (size,), embedding=False) for index, size in enumerate(sizes)]


def test_fragments_keep_the_order_of_tensors_and_number_by_the_earliest() -> None:
    layout = partition(tensors(1, 9, 1, 9, 1), 3)
    assert [fragment.index for fragment in layout.fragments] == [0, 1, 2]
    names = [[slot.tensor.name for slot in fragment.slots] for fragment in layout.fragments]
    assert names == sorted(map(sorted, names))


def test_one_tensor_a_fragment_is_the_finest_cut() -> None:
    layout = partition(tensors(3, 2, 1), 3)
    assert [fragment.numel for fragment in layout.fragments] == [3, 2, 1]
    assert layout.numel == 6
    assert layout.shares == (3 / 6, 2 / 6, 1 / 6)


@pytest.mark.parametrize("count", [0, -1, 4])
def test_more_fragments_than_tensors_are_refused(count: int) -> None:
    with pytest.raises(
        LayoutError, match=f"sync.fragments is {count}, but the model has 3 parameter tensors: use 1 to 3"
    ):
        partition(tensors(1, 2, 3), count)


def test_a_name_twice_is_refused() -> None:
    with pytest.raises(LayoutError, match="two parameters of one name"):
        partition([*tensors(1), *tensors(2)], 1)


def words(rows: int, *, embedding: bool = True) -> TensorSpec:
    """A table of vectors of as many elements as a piece may always have."""
    return TensorSpec("words", (rows, SMALLEST_PIECE), embedding)


def others(*rows: int) -> list[TensorSpec]:
    """Tensors of as many elements as tables of these numbers of rows."""
    return tensors(*(SMALLEST_PIECE * count for count in rows))


def pieces(layout: Layout) -> list[tuple[int, int, bool]]:
    """First row, rows and kind of each piece of the table, by rows."""
    specs = [slot.tensor for fragment in layout.fragments for slot in fragment.slots if slot.tensor.name == "words"]
    return sorted((spec.first_row, spec.shape[0], spec.embedding) for spec in specs)


def test_a_table_that_outweighs_the_fragments_is_split_by_rows() -> None:
    layout = partition([words(41), *others(5, 6, 8)], 4)
    assert pieces(layout) == [(0, 13, True), (13, 14, True), (27, 14, True)]
    assert max(fragment.numel for fragment in layout.fragments) <= 1.4 * layout.numel / 4
    assert layout_from_table(layout.table) == layout


@pytest.mark.parametrize(
    ("specs", "count"),
    [
        ([words(41), *others(5, 6, 8)], 1),
        ([words(14), *others(10, 5, 11)], 4),  # 1.4 times the mean
        ([words(28), *others(20, 1, 1)], 4),  # another tensor is as large
        ([TensorSpec("words", (3, 100), embedding=True), *tensors(1, 1)], 3),
        ([words(41, embedding=False), *others(5, 6, 8)], 4),
    ],
    ids=["one fragment", "balanced", "beside a tensor as large", "small", "averaged by its direction"],
)
def test_a_table_is_whole_where_a_split_helps_little_or_is_wrong(specs: list[TensorSpec], count: int) -> None:
    (whole,) = (spec for spec in specs if spec.name == "words")
    assert pieces(partition(specs, count)) == [(0, whole.shape[0], whole.embedding)]


def test_an_output_layer_is_merged_by_the_mean_only_if_it_is_split() -> None:
    output = words(41, embedding=False)
    split = pieces(partition([output, *others(5, 6, 8)], 4, output="words"))
    assert split == [(0, 13, True), (13, 14, True), (27, 14, True)]
    assert pieces(partition([output, *others(50, 6, 8)], 4, output="words")) == [(0, 41, False)]


def test_a_table_has_at_most_one_piece_for_each_row() -> None:
    specs = [TensorSpec("words", (2, 8 * SMALLEST_PIECE), embedding=True), *tensors(*[1] * 7)]
    assert pieces(partition(specs, 8)) == [(0, 1, True), (1, 1, True)]


def test_a_tensor_without_elements_is_refused() -> None:
    with pytest.raises(LayoutError, match="parameter t1 has no elements"):
        partition(tensors(1, 0), 1)


def test_the_digest_tells_layouts_apart_by_everything_that_matters() -> None:
    base = [TensorSpec("a", (2, 3), embedding=False), TensorSpec("b", (4,), embedding=False)]
    others = [
        [TensorSpec("c", (2, 3), embedding=False), base[1]],
        [TensorSpec("a", (3, 2), embedding=False), base[1]],
        [TensorSpec("a", (2, 3), embedding=True), base[1]],
        [TensorSpec("a", (2, 3), embedding=False, first_row=2), base[1]],
        [base[1], base[0]],
    ]
    digests = {partition(specs, 1).digest for specs in [base, *others]} | {partition(base, 2).digest}
    assert len(digests) == len(others) + 2
    assert partition(list(base), 1).digest in digests


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ((1, 1, 1, 3), [["t0", "t1", "t2"], ["t3"]]),  # the largest is packed first
        ((2, 3, 2, 2, 3), [["t0", "t1", "t3"], ["t2", "t4"]]),
        ((4, 4, 4, 4), [["t0", "t2"], ["t1", "t3"]]),  # those of one size in their order
        ((4, 2, 2, 1), [["t0", "t3"], ["t1", "t2"]]),  # of two alike, that with fewer tensors takes the next
    ],
)
def test_each_tensor_goes_to_the_smallest_fragment(sizes: tuple[int, ...], names: list[list[str]]) -> None:
    layout = partition(tensors(*sizes), 2)
    assert [[slot.tensor.name for slot in one.slots] for one in layout.fragments] == names


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
        (((("a", (1,), True, 3),), (("a", (2,), True, 3),)), "two tensors of one name"),
        (((("a", (1,), True, -1),),), "tensor 'a' has a shape"),
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
        ("c0", "{cut}", Match.OTHER_CONSTANTS),
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
