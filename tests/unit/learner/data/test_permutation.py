import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco.learner.data.sampler import Permutation


@given(count=st.integers(1, 3000), key=st.text(max_size=8))
def test_every_number_comes_exactly_once(count: int, key: str) -> None:
    places = Permutation(count, key)(np.arange(count))
    assert np.array_equal(np.sort(places), np.arange(count))


def test_the_key_decides_the_order() -> None:
    numbers = np.arange(1000)
    one = Permutation(1000, "a")(numbers)
    assert np.array_equal(one, Permutation(1000, "a")(numbers))
    assert not np.array_equal(one, Permutation(1000, "b")(numbers))


@pytest.mark.parametrize(
    ("count", "order"),
    [
        (1, [0]),
        (2, [1, 0]),
        (3, [2, 0, 1]),
        (4, [2, 0, 3, 1]),
        (5, [4, 0, 1, 2, 3]),
        (16, [4, 0, 1, 10, 6, 5, 13, 11, 14, 7, 12, 3, 2, 15, 9, 8]),
        (17, [5, 4, 15, 10, 13, 11, 3, 9, 8, 6, 12, 7, 0, 2, 14, 16, 1]),
    ],
)
def test_an_order_is_that_of_every_version_before(count: int, order: list[int]) -> None:
    # A learner that was started by another version continues at its position in the same order.
    assert Permutation(count, "shards 7")(np.arange(count)).tolist() == order


def test_neighbours_are_scattered() -> None:
    places = Permutation(100_000, "scatter")(np.arange(100_000))
    assert abs(np.corrcoef(places[:-1], places[1:])[0, 1]) < 0.02
    assert np.abs(np.diff(places)).mean() == pytest.approx(100_000 / 3, rel=0.02)


def test_a_part_is_computed_without_the_rest_however_many_there_are() -> None:
    places = Permutation(10**15, "large")(np.array([0, 1, 10**15 - 1]))
    assert ((places >= 0) & (places < 10**15)).all()


def test_nothing_cannot_be_put_in_order() -> None:
    with pytest.raises(ValueError, match="count is 0"):
        Permutation(0, "a")
