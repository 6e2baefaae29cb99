"""A set of ranges is the set of its numbers."""

from hypothesis import given
from hypothesis import strategies as st

from diloco.core.dealing.ranges import Ranges

CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 12)), max_size=12)


@given(CHANGES, st.integers(0, 30), st.integers(0, 12))
def test_ranges_are_the_set_of_their_numbers(changes: list[tuple[bool, int, int]], start: int, length: int) -> None:
    ranges, numbers = Ranges(), set[int]()
    for adds, at, count in changes:
        part = set(range(at, at + count))
        if adds:
            assert ranges.add(at, at + count) == len(part - numbers)
        else:
            ranges.remove(at, at + count)
        numbers = numbers | part if adds else numbers - part
    assert [number for pair in ranges.pairs for number in range(*pair)] == sorted(numbers)
    assert all(one[1] < two[0] for one, two in zip(ranges.pairs, ranges.pairs[1:], strict=False))
    assert ranges.count(start, start + length) == len(numbers & set(range(start, start + length)))
    assert [number for pair in ranges.take(length) for number in range(*pair)] == sorted(numbers)[:length]
    assert sum(stop - one for one, stop in ranges.pairs) == max(0, len(numbers) - length)
