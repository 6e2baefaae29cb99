"""Orders of a learner's first process to the others: what is told is heard, and nothing else is an order."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco.learner.unit.orders import NUMBERS, Op, Order, OrderError, decoded

INTEGERS = st.integers(min_value=-(2**63), max_value=2**63 - 1)
ORDERS = st.builds(Order, st.sampled_from(Op), INTEGERS, INTEGERS, st.floats(allow_nan=False))


@given(ORDERS)
def test_an_order_is_heard_as_it_was_told(order: Order) -> None:
    numbers = order.encoded()
    assert len(numbers) == NUMBERS
    assert all(-(2**63) <= number < 2**63 for number in numbers)
    heard = decoded(numbers)
    assert heard == order
    assert math.copysign(1, heard.x) == math.copysign(1, order.x)


@given(st.lists(INTEGERS, max_size=2 * NUMBERS))
def test_any_numbers_are_an_order_or_one_line(numbers: list[int]) -> None:
    if len(numbers) == NUMBERS and numbers[0] in list(Op):
        assert decoded(numbers).encoded() == numbers
        return
    with pytest.raises(OrderError) as error:
        decoded(numbers)
    assert len(str(error.value).splitlines()) == 1
