import math

import pytest

from diloco.runtime.json_text import JsonError, parse_json


def test_values_come_as_they_are() -> None:
    assert parse_json('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
    assert math.isnan(parse_json(b"NaN"))
    assert parse_json("[" * 150 + "]" * 150)


@pytest.mark.parametrize("depth", [250, 900, 100_000])
@pytest.mark.parametrize(("begins", "inner", "ends"), [("[", "", "]"), ('{"a":', "1", "}")])
def test_what_is_nested_too_deeply_is_refused_however_deep(depth: int, begins: str, inner: str, ends: str) -> None:
    with pytest.raises(JsonError, match="recursion limit exceeded"):
        parse_json(begins * depth + inner + ends * depth)


@pytest.mark.parametrize("text", ["", "{", b"\xff", "9" * 10_000])
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(JsonError, match="not JSON"):
        parse_json(text)
