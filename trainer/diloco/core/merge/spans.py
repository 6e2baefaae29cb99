"""The parts of a fragment that are merged with one set of factors: a tensor, or a run of tensors."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from diloco.core.merge.radial import direction_agreement, final_length


@dataclass(slots=True)
class Span:
    """Elements ``start`` to ``stop`` of the fragment."""

    name: str
    """Name of its (first) tensor."""
    start: int
    stop: int
    factors: tuple[float, ...]
    """Of each member's values before they are added up."""
    norm: float | None = None
    """L2 norm that the combined values get at the end (RDA); None: they stay as they are."""
    squares: list[float] = field(default_factory=list)
    """Parts of the sum of squares of the combined values, which the second pass appends."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    @property
    def agreement(self) -> float:
        """See ``direction_agreement``; 1 if the values stay as they are."""
        return 1.0 if self.norm is None else direction_agreement(math.fsum(self.squares), self.norm)

    @property
    def length(self) -> float:
        """Factor of the combined values at the end."""
        return 1.0 if self.norm is None else final_length(self.agreement)

    @property
    def cancelled(self) -> bool:
        """Whether the directions cancelled."""
        return self.norm is not None and self.norm > 0.0 and self.length == 0.0


def add_span(spans: list[Span], span: Span) -> None:
    """Append a span; one that stays as it is joins the span before it if both have the same factors."""
    before = spans[-1] if spans else span
    if before is not span and before.norm is span.norm is None and before.factors == span.factors:
        before.stop = span.stop
    else:
        spans.append(span)


def spans_within(spans: Sequence[Span], first: int, last: int) -> Iterator[tuple[Span, int, int]]:
    """The spans that elements ``first`` to ``last`` touch, with the part's start and stop counted from ``first``."""
    for index in range(bisect_right(spans, first, key=lambda span: span.start) - 1, len(spans)):
        span = spans[index]
        if span.start >= last:
            return
        yield span, max(span.start, first) - first, min(span.stop, last) - first
