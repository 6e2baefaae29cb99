"""Which parts of a fragment are merged as one, and which of them a block touches."""

import pytest

from diloco.core.merge.spans import Span, add_span, spans_within

SPANS = [Span("t0", 0, 2, (1.0,)), Span("t1", 2, 5, (1.0,)), Span("t2", 5, 10, (1.0,))]


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        (Span("a", 0, 2, (0.5, 0.5)), Span("b", 2, 5, (0.5, 0.5)), True),
        (Span("a", 0, 2, (0.5, 0.5)), Span("b", 2, 5, (0.5, 0.25)), False),
        (Span("a", 0, 2, (0.5, 0.5), 1.0), Span("b", 2, 5, (0.5, 0.5)), False),
        (Span("a", 0, 2, (0.5, 0.5), 1.0), Span("b", 2, 5, (0.5, 0.5), 1.0), False),
    ],
)
def test_neighbours_that_stay_as_they_are_with_the_same_factors_are_one(
    first: Span, second: Span, *, joined: bool
) -> None:
    spans: list[Span] = []
    for span in (first, second):
        add_span(spans, span)
    assert [(span.start, span.stop) for span in spans] == ([(0, 5)] if joined else [(0, 2), (2, 5)])


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
    assert [(span.name, start, stop) for span, start, stop in spans_within(SPANS, first, last)] == parts
