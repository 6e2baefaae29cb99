"""Dataclasses go through JSON to the bit, and what is none is refused by one line with the field and its value."""

import json
import math
import struct
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco.runtime.plain import PlainError, from_plain, to_plain


class Kind(StrEnum):
    ONE = "one"


@dataclass(frozen=True, slots=True)
class Inner:
    pair: tuple[int, bool] = (1, True)
    kind: Kind = Kind.ONE


@dataclass(slots=True)
class Outer:
    number: int
    seconds: float = 0.5
    names: set[str] = field(default_factory=set)
    inners: tuple[Inner, ...] = (Inner(),)
    by_number: dict[int, Inner] = field(default_factory=dict)
    by_size: dict[float, str] = field(default_factory=dict)
    maybe: Inner | None = None


FULL = Outer(1, math.inf, {"a", "b"}, (Inner((3, False)), Inner()), {2: Inner(), 1: Inner()}, {1.5: "x"}, Inner())


@pytest.mark.parametrize("value", [FULL, Outer(7)])
def test_what_goes_through_json_comes_back_equal_and_in_its_order(value: Outer) -> None:
    again = from_plain(Outer, json.loads(json.dumps(to_plain(value))))
    assert again == value
    assert list(again.by_number) == list(value.by_number)


@given(st.floats())
def test_a_float_comes_back_to_the_bit(value: float) -> None:
    again = from_plain(Outer, json.loads(json.dumps(to_plain(Outer(1, value)))))
    if math.isnan(value):
        assert math.isnan(again.seconds)
    else:
        assert struct.pack("d", again.seconds) == struct.pack("d", value)


def test_a_float_may_be_a_whole_number_and_a_default_may_be_missing() -> None:
    assert from_plain(Outer, {"number": 1, "seconds": 3}) == Outer(1, 3.0)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"number": "3"}, "Outer.number is '3': Input should be a valid integer"),
        ({"number": True}, "Outer.number is True: Input should be a valid integer"),
        ({"inners": [{"pair": [1]}]}, "Outer.inners.0.pair.1 is [1]: Field required"),
        ({"inners": [{"kind": "two"}]}, "Outer.inners.0.kind is 'two': Input should be 'one'"),
        ({"by_number": {"x": {}}}, "Outer.by_number.x.[key] is 'x': Input should be a valid integer"),
        ({"more\n": 1, "number": "3"}, r"Outer.more\n is 1: Unexpected keyword argument"),
    ],
)
def test_a_value_of_another_type_is_named(change: dict[str, Any], text: str) -> None:
    with pytest.raises(PlainError) as refused:
        from_plain(Outer, to_plain(Outer(1)) | change)
    assert str(refused.value).startswith(text)
    assert refused.value.unknown is any("more" in name for name in change)


@pytest.mark.parametrize("plain", [None, [], "text", {}, {"number": "9" * 10_000}, "\ud800"])
def test_anything_else_is_refused_in_one_short_line(plain: Any) -> None:
    with pytest.raises(PlainError) as refused:
        from_plain(Outer, plain)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200
