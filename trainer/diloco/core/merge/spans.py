"""The parts of a fragment that are merged as one: a tensor by its direction, or a run of tensors by the plain mean."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from diloco.core.fragments import Fragment
from diloco.core.merge.radial import RadialMean, final_length


@dataclass(slots=True)
class Span:
    """Elements ``start`` to ``stop`` of the fragment."""

    name: str
    """Name of its (first) tensor."""
    start: int
    stop: int
    radial: RadialMean | None
    """None: the plain weighted mean."""
    squares: list[float] = field(default_factory=list)
    """Parts of the sum of squares of the combined values, which the second pass appends."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    @property
    def agreement(self) -> float:
        """See ``RadialMean.agreement``; 1 for the plain mean."""
        return 1.0 if self.radial is None else self.radial.agreement(math.fsum(self.squares))

    @property
    def length(self) -> float:
        """Factor of the combined values at the end."""
        return 1.0 if self.radial is None else final_length(self.agreement)

    @property
    def cancelled(self) -> bool:
        """Whether the directions cancelled."""
        return self.radial is not None and self.length == 0.0 and self.radial.mean_norm() > 0.0


def plain_spans(fragment: Fragment) -> list[Span]:
    """One span: everything by the plain mean."""
    return [Span(fragment.slots[0].tensor.name, 0, fragment.numel, None)]


def radial_spans(fragment: Fragment, weights: tuple[float, ...]) -> list[Span]:
    """Each tensor by its direction, but embeddings by the plain mean; ``weights`` are the members'."""
    spans: list[Span] = []
    for slot in fragment.slots:
        stop = slot.offset + slot.tensor.numel
        if not slot.tensor.embedding:
            spans.append(Span(slot.tensor.name, slot.offset, stop, RadialMean(weights)))
        elif spans and spans[-1].radial is None:
            spans[-1].stop = stop
        else:
            spans.append(Span(slot.tensor.name, slot.offset, stop, None))
    return spans


def spans_within(spans: Sequence[Span], first: int, last: int) -> Iterator[tuple[Span, int, int]]:
    """The spans that elements ``first`` to ``last`` touch, with the part's start and stop counted from ``first``."""
    for index in range(bisect_right(spans, first, key=lambda span: span.start) - 1, len(spans)):
        span = spans[index]
        if span.start >= last:
            return
        yield span, max(span.start, first) - first, min(span.stop, last) - first
