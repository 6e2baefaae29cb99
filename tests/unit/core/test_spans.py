"""Which parts of a fragment are merged as one, and which of them a block touches."""

import pytest

from diloco.core.fragments import Fragment, Slot, TensorSpec
from diloco.core.radial import RadialMean
from diloco.core.spans import Span, plain_spans, radial_spans, spans_within


def fragment(*tensors: tuple[int, bool]) -> Fragment:
    """Tensors ``t0``, ``t1``, ... of these numbers of elements; embeddings or not."""
    slots, end = [], 0
    for index, (numel, embedding) in enumerate(tensors):
        slots.append(Slot(TensorSpec(f"t{index}", (numel,), embedding), end))
        end += numel
    return Fragment(0, tuple(slots), end)


@pytest.mark.parametrize(
    ("tensors", "spans"),
    [
        (((2, False), (3, False)), [("t0", 0, 2, True), ("t1", 2, 5, True)]),
        (((2, True), (3, True)), [("t0", 0, 5, False)]),  # embeddings beside each other are one run
        (((2, True), (3, False), (4, True)), [("t0", 0, 2, False), ("t1", 2, 5, True), ("t2", 5, 9, False)]),
    ],
)
def test_tensors_have_a_direction_each_and_embeddings_share_a_mean(
    tensors: tuple[tuple[int, bool], ...], spans: list[tuple[str, int, int, bool]]
) -> None:
    found = radial_spans(fragment(*tensors), (0.5, 0.5))
    assert [(span.name, span.start, span.stop, span.radial is not None) for span in found] == spans
    assert [span.numel for span in found] == [stop - start for _, start, stop, _ in spans]
    (plain,) = plain_spans(fragment(*tensors))
    assert plain == Span("t0", 0, sum(numel for numel, _ in tensors), None)


@pytest.mark.parametrize(
    ("first", "last", "parts"),
    [
        (0, 10, [("t0", 0, 2), ("t1", 2, 5), ("t2", 5, 10)]),
        (0, 2, [("t0", 0, 2)]),
        (1, 3, [("t0", 0, 1), ("t1", 1, 2)]),
        (2, 5, [("t1", 0, 3)]),
        (3, 4, [("t1", 0, 1)]),
        (5, 7, [("t2", 0, 2)]),
    ],
)
def test_a_block_touches_the_spans_that_lie_in_it(first: int, last: int, parts: list[tuple[str, int, int]]) -> None:
    spans = radial_spans(fragment((2, False), (3, False), (5, False)), (1.0,))
    assert [(span.name, start, stop) for span, start, stop in spans_within(spans, first, last)] == parts


def test_the_plain_mean_is_as_long_as_it_is() -> None:
    plain = Span("t0", 0, 4, None, [9.0])
    assert (plain.agreement, plain.length, plain.cancelled) == (1.0, 1.0, False)


@pytest.mark.parametrize(
    ("norm_square", "squares", "length", "cancelled"),
    [
        (4.0, [0.5, 0.5], 2.0, False),  # half as long as the norm of 2
        (4.0, [0.0], 0.0, True),
        (0.0, [0.0], 0.0, False),  # there was no direction
    ],
)
def test_what_is_left_of_the_directions_tells_the_length(
    norm_square: float, squares: list[float], length: float, *, cancelled: bool
) -> None:
    radial = RadialMean((1.0,))
    radial.squares[0].append(norm_square)
    span = Span("t0", 0, 4, radial, squares)
    assert (span.length, span.cancelled) == (length, cancelled)
