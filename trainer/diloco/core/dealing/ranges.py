"""A set of whole numbers, kept as ranges: what it costs depends on the ranges, not on the numbers."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter

_START, _STOP = itemgetter(0), itemgetter(1)


class Ranges:
    """Sorted ranges (start, stop) that neither overlap nor touch."""

    def __init__(self, pairs: Iterable[Iterable[int]] = ()) -> None:
        self.pairs: list[tuple[int, int]] = []
        for start, stop in pairs:
            self.add(start, stop)

    def add(self, start: int, stop: int) -> int:
        """Add start .. stop - 1; returns how many of them were not in the set."""
        if start >= stop:
            return 0
        new = stop - start - self.count(start, stop)
        low = bisect_left(self.pairs, start, key=_STOP)
        high = bisect_right(self.pairs, stop, key=_START)
        touched = self.pairs[low:high] or [(start, stop)]
        self.pairs[low:high] = [(min(start, touched[0][0]), max(stop, touched[-1][1]))]
        return new

    def remove(self, start: int, stop: int) -> None:
        """Remove start .. stop - 1, as far as they are in the set."""
        low, high = self._touched(start, stop)
        ends = [(self.pairs[low][0], start), (stop, self.pairs[high - 1][1])] if low < high else []
        self.pairs[low:high] = [pair for pair in ends if pair[0] < pair[1]]

    def within(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The ranges of the set's members in start .. stop - 1."""
        low, high = self._touched(start, stop)
        return [(max(start, one), min(stop, end)) for one, end in self.pairs[low:high]]

    def count(self, start: int, stop: int) -> int:
        """How many of start .. stop - 1 are in the set."""
        return sum(end - one for one, end in self.within(start, stop))

    def take(self, count: int) -> list[tuple[int, int]]:
        """Remove the ``count`` smallest members, or all if there are fewer; returns their ranges."""
        taken: list[tuple[int, int]] = []
        while self.pairs and count > 0:
            start, stop = self.pairs[0]
            taken.append((start, min(stop, start + count)))
            count -= taken[-1][1] - start
            self.remove(*taken[-1])
        return taken

    def _touched(self, start: int, stop: int) -> tuple[int, int]:
        low = bisect_right(self.pairs, start, key=_STOP)
        return low, max(low, bisect_left(self.pairs, stop, key=_START))
