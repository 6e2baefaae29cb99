"""Which parts of a fragment are merged as one, and which of them a block touches."""

import pytest

from diloco.core.fragments import Fragment
from diloco.core.merge.spans import Span, plain_spans, radial_spans, spans_within
from tests.support.fragment_merge import fragment_of


@pytest.mark.parametrize(
    ("fragment", "spans"),
    [
        (fragment_of((2,), (3,)), [("t0", 0, 2, True), ("t1", 2, 5, True)]),
        (fragment_of((2,), (3,), embeddings=[0, 1]), [("t0", 0, 5, False)]),  # beside each other they are one run
        (
            fragment_of((2,), (3,), (4,), embeddings=[0, 2]),
            [("t0", 0, 2, False), ("t1", 2, 5, True), ("t2", 5, 9, False)],
        ),
    ],
)
def test_tensors_have_a_direction_each_and_embeddings_share_a_mean(
    fragment: Fragment, spans: list[tuple[str, int, int, bool]]
) -> None:
    found = radial_spans(fragment, (0.5, 0.5))
    assert [(span.name, span.start, span.stop, span.radial is not None) for span in found] == spans
    assert [span.numel for span in found] == [stop - start for _, start, stop, _ in spans]
    (plain,) = plain_spans(fragment)
    assert plain == Span("t0", 0, fragment.numel, None)


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
    spans = radial_spans(fragment_of((2,), (3,), (5,)), (1.0,))
    assert [(span.name, start, stop) for span, start, stop in spans_within(spans, first, last)] == parts
