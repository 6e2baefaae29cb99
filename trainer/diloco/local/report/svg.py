"""Line, point and timeline charts as SVG text, for a page without scripts. Pure.

Colors are CSS classes (``c0`` ... ``c7``) and variables of the page, so that charts follow its light or dark scheme.
Every mark carries a ``<title>``, which shows its value on hovering.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

_WIDTH = 640.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 26.0, 10.0, 40.0
_MOST_POINTS = 400
_LETTER = 6.2
"""Approximate width of a letter."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one series."""

    name: str
    points: Sequence[tuple[float, float]]
    """(x, y), by x."""
    color: int = 0
    """Index in the page's palette."""
    marks: bool = False
    """Draw dots at the points."""
    line: bool = True
    """Draw a line through the points."""
    faint: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its title and how its numbers are formatted."""

    title: str
    text: Callable[[float], str]
    from_zero: bool = False
    unit: float = 1.0
    """Ticks are at round multiples of this (60 for seconds shown as minutes)."""
    to: float | None = None
    """Where it ends. Default: at the largest value."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A span on a timeline."""

    start: float
    end: float
    style: str
    """CSS class."""
    title: str
    thin: bool = False
    """Drawn over the others, at the bottom of the lane."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of a timeline."""

    name: str
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a whole."""

    share: float
    style: str
    """CSS class."""
    labels: Sequence[str]
    """Possible labels: the first that fits is drawn, or none."""
    title: str


@dataclass(frozen=True, slots=True)
class Whole:
    """A bar that consists of its parts."""

    name: str
    parts: Sequence[Part]


def line_chart(series: Sequence[Series], x: Axis, y: Axis, *, height: float = 240.0) -> str:
    """A chart of the series; an empty string if there are no points."""
    points = [point for one in series for point in one.points if all(map(math.isfinite, point))]
    if not points:
        return ""
    xs, ys = _Scale.over([p[0] for p in points], x), _Scale.over([p[1] for p in points], y)
    area = _Area(xs, ys, height)
    parts = [_opening(height, f"{y.title} by {x.title}"), *_grid(area, x, y)]
    parts += [mark for one in series for mark in _series(one, area, x, y)]
    return "".join([*parts, "</svg>"]) + _legend([(one.name, f"c{one.color % 8}") for one in series if one.name])


def timeline(lanes: Sequence[Lane], x: Axis, legend: Sequence[tuple[str, str]]) -> str:
    """Lanes of bars over time, from 0 to the axis's end; ``legend`` gives (name, CSS class). Twice a chart's width."""
    lane_height, left, whole = 22.0, 130.0, 2 * _WIDTH
    height = _TOP + lane_height * len(lanes) + _BOTTOM
    end = max([1e-9, x.to or 0.0, *(bar.end for lane in lanes for bar in lane.bars)])
    scale = _Scale(0.0, end, _ticks(0.0, end, x.unit, about=12))

    def place(value: float) -> float:
        return left + scale.share(value) * (whole - left - _RIGHT)

    parts = [_opening(height, f"timeline by {x.title}", whole)]
    foot = height - _BOTTOM
    for tick in scale.ticks:
        at = place(tick)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{foot:.1f}"/>')
        parts.append(f'<text x="{at:.1f}" y="{foot + 16:.1f}" text-anchor="middle">{escape(x.text(tick))}</text>')
    for number, lane in enumerate(lanes):
        top = _TOP + number * lane_height
        parts.append(f'<text x="{left - 8}" y="{top + 14:.1f}" text-anchor="end">{escape(lane.name)}</text>')
        for bar in lane.bars:
            y, tall = (top + 14, 4.0) if bar.thin else (top + 3, 15.0)
            begin, width = place(bar.start), max(0.8, place(bar.end) - place(bar.start))
            parts.append(
                f'<rect class="{bar.style}" x="{begin:.1f}" y="{y:.1f}" width="{width:.1f}" height="{tall}">'
                f"<title>{escape(bar.title)}</title></rect>"
            )
    parts.append(_axis_title(x.title, height, (left + whole - _RIGHT) / 2))
    return "".join([*parts, "</svg>"]) + _legend(legend)


def stacked_bars(wholes: Sequence[Whole], legend: Sequence[tuple[str, str]], label: str) -> str:
    """A bar from 0 to 100 % for each whole; ``legend`` gives (name, CSS class). Twice a chart's width."""
    if not wholes:
        return ""
    row, left, whole_width = 28.0, 130.0, 2 * _WIDTH
    width = whole_width - left - _RIGHT
    height = _TOP + row * len(wholes) + _BOTTOM / 2
    foot = height - _BOTTOM / 2
    parts = [_opening(height, label, whole_width)]
    for tenth in range(0, 11, 2):
        at = left + width * tenth / 10
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{foot:.1f}"/>')
        parts.append(f'<text x="{at:.1f}" y="{foot + 16:.1f}" text-anchor="middle">{10 * tenth} %</text>')
    for number, whole in enumerate(wholes):
        top = _TOP + number * row
        parts.append(f'<text x="{left - 8}" y="{top + 17:.1f}" text-anchor="end">{escape(whole.name)}</text>')
        begin = left
        for part in whole.parts:
            wide = width * part.share
            parts.append(
                f'<g class="{part.style}"><title>{escape(part.title)}</title>'
                f'<rect x="{begin:.1f}" y="{top + 3:.1f}" width="{wide:.2f}" height="21"/>'
            )
            fitting = next((text for text in part.labels if _LETTER * len(text) + 4 <= wide), "")
            middle = begin + wide / 2
            parts.append(f'<text x="{middle:.1f}" y="{top + 17:.1f}" text-anchor="middle">{escape(fitting)}</text></g>')
            begin += wide
    return "".join([*parts, "</svg>"]) + _legend(legend)


def thinned(points: Sequence[tuple[float, float]], most: int = _MOST_POINTS) -> list[tuple[float, float]]:
    """At most ``most`` points: means over equal runs of neighbors."""
    if len(points) <= most:
        return list(points)
    edges = [len(points) * i // most for i in range(most + 1)]
    groups = [points[a:b] for a, b in pairwise(edges)]
    return [(sum(p[0] for p in g) / len(g), sum(p[1] for p in g) / len(g)) for g in groups]


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    ticks: tuple[float, ...]

    @classmethod
    def over(cls, values: Sequence[float], axis: Axis) -> "_Scale":
        low, high = min(values), max(values) if axis.to is None else axis.to
        low = min(0.0, low) if axis.from_zero else low
        if high <= low:
            low, high = (low - 0.5, high + 0.5) if not axis.from_zero else (low, low + 1.0)
        ticks = _ticks(low, high, axis.unit)
        return cls(min(low, ticks[0]), high, ticks) if axis.from_zero else cls(low, high, ticks)

    def share(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class _Area:
    x: _Scale
    y: _Scale
    height: float

    def place(self, x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + self.x.share(x) * (_WIDTH - _LEFT - _RIGHT),
            self.height - _BOTTOM - self.y.share(y) * (self.height - _TOP - _BOTTOM),
        )


def _ticks(low: float, high: float, unit: float, about: int = 6) -> tuple[float, ...]:
    """Round numbers between ``low`` and ``high``."""
    raw = (high - low) / unit / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s for s in (1, 2, 5, 10) if s * power >= raw * 0.999) * power * unit
    first = math.ceil(low / step - 1e-9)
    return tuple(i * step for i in range(first, math.floor(high / step + 1e-9) + 1)) or (low,)


def _opening(height: float, label: str, width: float = _WIDTH) -> str:
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">'


def _grid(area: _Area, x: Axis, y: Axis) -> list[str]:
    foot = area.height - _BOTTOM
    parts = []
    for tick in area.y.ticks:
        _, at = area.place(area.x.low, tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(y.text(tick))}</text>')
    for tick in area.x.ticks:
        at, _ = area.place(tick, area.y.low)
        parts.append(f'<line class="tick" x1="{at:.1f}" x2="{at:.1f}" y1="{foot}" y2="{foot + 4}"/>')
        parts.append(f'<text x="{at:.1f}" y="{foot + 16}" text-anchor="middle">{escape(x.text(tick))}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{foot}" y2="{foot}"/>')
    parts.append(_axis_title(x.title, area.height, (_LEFT + _WIDTH - _RIGHT) / 2))
    middle = (_TOP + foot) / 2
    parts.append(
        f'<text class="title" transform="translate(14 {middle:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.title)}</text>"
    )
    return parts


def _series(one: Series, area: _Area, x: Axis, y: Axis) -> list[str]:
    points = [point for point in one.points if all(map(math.isfinite, point))]
    faint = " faint" if one.faint else ""
    color = f"c{one.color % 8}{faint}"
    parts = []
    if one.line and len(points) > 1:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (area.place(*p) for p in thinned(points)))
        parts.append(f'<polyline class="line {color}" points="{path}"><title>{escape(one.name)}</title></polyline>')
    if one.marks or len(points) == 1:
        for px, py in points:
            a, b = area.place(px, py)
            told = escape(f"{one.name} {y.text(py)} at {x.text(px)}".strip())
            parts.append(
                f'<circle class="mark {color}" cx="{a:.1f}" cy="{b:.1f}" r="2.6"><title>{told}</title></circle>'
            )
    return parts


def _axis_title(title: str, height: float, middle: float) -> str:
    return f'<text class="title" x="{middle:.0f}" y="{height - 4:.0f}" text-anchor="middle">{escape(title)}</text>'


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    if len(entries) < 2:
        return ""
    items = "".join(f'<span><i class="{style}"></i>{escape(name)}</span>' for name, style in entries)
    return f'<div class="legend">{items}</div>'
