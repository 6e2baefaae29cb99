import math

import pytest

from diloco.local.report.svg import Axis, Series, line_chart


def chart(*values: float, from_zero: bool = False) -> str:
    points = [(float(place), value) for place, value in enumerate(values)]
    return line_chart([Series("a", points)], Axis("time", str), Axis("loss", str, from_zero=from_zero))


@pytest.mark.parametrize("value", [0.0, 5e-324, 3.0, 1e16, -1e17, 1e99, -1e99])
@pytest.mark.parametrize("from_zero", [False, True])
def test_any_value_alone_has_a_scale(value: float, *, from_zero: bool) -> None:
    assert "<circle" in chart(value, from_zero=from_zero)
    assert "<polyline" in chart(value, value, from_zero=from_zero)
    assert "<polyline" in chart(value, math.nextafter(value, math.inf), from_zero=from_zero)


@pytest.mark.parametrize("value", [1e100, -1e308, math.inf, math.nan])
def test_a_value_without_a_scale_is_left_out(value: float) -> None:
    assert chart(1.0, value, 2.0) == line_chart(
        [Series("a", [(0.0, 1.0), (2.0, 2.0)])], Axis("time", str), Axis("loss", str)
    )
    assert chart(value) == ""
