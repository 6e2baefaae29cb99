"""``sweep.html``: plots of a sweep, in one self-contained file. Pure."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

from markupsafe import Markup

from diloco.local.report.html import page_of_charts
from diloco.local.report.svg import Axis, Series, line_chart
from diloco.local.view.units import duration_text
from diloco.spec.quantities import QuantityError, parse_rate

_MOST_SERIES = 8
"""The page has as many colors."""


def short_names(fields: Sequence[str]) -> dict[str, str]:
    """By field: its last parts, as many as no other field ends with."""
    return {field: _short(field, [one for one in fields if one != field]) for field in fields}


def _short(field: str, others: Sequence[str]) -> str:
    parts = field.split(".")
    ends = (".".join(parts[place:]) for place in range(len(parts) - 1, 0, -1))
    return next((end for end in ends if not any(f".{one}".endswith(f".{end}") for one in others)), field)


def sweep_page(job: str, fields: Sequence[str], runs: Sequence[Mapping[str, Any]]) -> str:
    """The page of a sweep over ``fields``, whose ``runs`` are those of ``sweep.json``."""
    x = axis_field(fields, runs)
    charts = [] if x is None else [(title, _chart(x, fields, runs, read, axis)) for title, read, axis in _FIGURES]
    heading = f"{job}: {len(runs)} simulated runs"
    rows = [[*run["values"].values(), run["ending"], run["reason"]] for run in runs]
    return page_of_charts(heading, charts, ([*fields, "ending", "reason"], rows))


def _percent(value: float) -> str:
    return f"{value:.0%}"


_FIGURES: tuple[tuple[str, Callable[[Mapping[str, Any]], float | None], Axis], ...] = (
    ("Goodput", lambda run: run["goodput"], Axis("goodput", _percent, from_zero=True)),
    ("Merged share", lambda run: run["merged"], Axis("merged", _percent, from_zero=True)),
    ("Time until it is complete", lambda run: run["finish_seconds"], Axis("complete after", duration_text)),
    (
        "Rate of the busiest link",
        lambda run: 8e-9 * run["bytes_per_second"],
        Axis("Gbit/s", lambda value: f"{value:.3g}", from_zero=True),
    ),
    ("Cost of the whole job", lambda run: run["cost"] or None, Axis("cost", lambda value: f"{value:,.0f}")),
)
"""Title, how it is read from a run, and its axis."""


def axis_field(fields: Sequence[str], runs: Sequence[Mapping[str, Any]]) -> str | None:
    """The field of the x axis: the first whose values are numbers or rates, not all unlimited. None: there is none."""
    for field in fields:
        numbers = [_number(run["values"][field]) for run in runs]
        if None not in numbers and any(one is not None and isfinite(one) for one in numbers):
            return field
    return None


def _number(text: str) -> float | None:
    """The value as a number, a rate in Gbit/s, infinite if it is unlimited; None: it is neither."""
    try:
        return float(text.replace("_", ""))
    except ValueError:
        pass
    try:
        return 8e-9 * parse_rate("", text)
    except QuantityError:
        return None


def _chart(
    x: str,
    fields: Sequence[str],
    runs: Sequence[Mapping[str, Any]],
    read: Callable[[Mapping[str, Any]], float | None],
    axis: Axis,
) -> Markup:
    lines: dict[str, list[tuple[float, float]]] = {}
    names = short_names(fields)
    for run in runs:
        others = [f"{names[field]} {run['values'][field]}" for field in fields if field != x]
        at, value = _number(run["values"][x]), read(run)
        if at is not None and isfinite(at) and value is not None:
            lines.setdefault(", ".join(others), []).append((at, value))
    series = [
        Series(name, sorted(points), color=place, marks=True)
        for place, (name, points) in enumerate([*lines.items()][:_MOST_SERIES])
    ]
    more = f"; {len(lines) - _MOST_SERIES} more lines are in sweep.json" if len(lines) > _MOST_SERIES else ""
    unit = " (Gbit/s)" if any("bit/s" in run["values"][x] or "B/s" in run["values"][x] for run in runs) else ""
    return line_chart(series, Axis(f"{x}{unit}{more}", lambda value: f"{value:g}"), axis)
