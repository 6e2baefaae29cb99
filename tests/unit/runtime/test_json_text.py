import math

import pytest

from diloco.runtime.json_text import MAXIMUM_DEPTH, JsonError, parse_json


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def test_values_come_as_they_are() -> None:
    assert parse_json('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
    assert math.isnan(parse_json(b"NaN"))


@pytest.mark.parametrize("depth", [MAXIMUM_DEPTH + 2, 900, 100_000])
@pytest.mark.parametrize("pair", ["[]", "{}"])
def test_what_is_nested_too_deeply_is_refused_however_deep(depth: int, pair: str) -> None:
    text = nested(depth) if pair == "[]" else '{"a":' * depth + "1" + "}" * depth
    with pytest.raises(JsonError, match="nested more than 100 deep"):
        parse_json(text)


def test_what_is_nested_less_is_read() -> None:
    assert parse_json(nested(MAXIMUM_DEPTH))


@pytest.mark.parametrize("text", ["", "{", b"\xff", "9" * 10_000])
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(JsonError, match="not JSON"):
        parse_json(text)
