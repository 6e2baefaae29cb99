"""Line, point and timeline charts as SVG text, for a page without scripts. Pure.

Colors are CSS classes (``c0`` ... ``c7``) and variables of the page, so that charts follow its light or dark scheme.
Every mark carries a ``<title>``, which shows its value on hovering.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

_WIDTH, _HEIGHT = 640.0, 240.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 26.0, 10.0, 40.0
_MOST_POINTS = 400
_LETTER = 6.2
_MOST = 1e100
"""Values of at least this size are not drawn, as those that are not finite: their differences would overflow."""
_LEAST_RANGE = 1e-100
_FLAG_HEIGHT = 18.0


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one series."""

    name: str
    points: Sequence[tuple[float, float]]
    """(x, y), by x."""
    color: int = 0
    marks: bool = False
    line: bool = True
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
    title: str
    thin: bool = False
    """Drawn over the others, at the bottom of the lane."""


@dataclass(frozen=True, slots=True)
class Flag:
    """An event on a timeline."""

    at: float
    lane: str
    title: str


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a whole."""

    share: float
    style: str
    labels: Sequence[str]
    """Possible labels: the first that fits is drawn, or none."""
    title: str


@dataclass(frozen=True, slots=True)
class Whole:
    """A bar that consists of its parts."""

    name: str
    parts: Sequence[Part]


def line_chart(series: Sequence[Series], x: Axis, y: Axis) -> Markup:
    """A chart of the series; empty if there are no points."""
    points = [point for one in series for point in _drawn(one)]
    if not points:
        return Markup()
    xs, ys = _Scale.over([p[0] for p in points], x), _Scale.over([p[1] for p in points], y)
    area = _Area(xs, ys)
    parts = _grid(area, x, y) + [mark for one in series for mark in _series(one, area, x, y)]
    legend = [(one.name, f"c{one.color % 8}") for one in series if one.name]
    return _chart(_WIDTH, _HEIGHT, f"{y.title} by {x.title}", parts) + _legend(legend)


def timeline(
    lanes: Mapping[str, Sequence[Bar]], x: Axis, legend: Sequence[tuple[str, str]], flags: Sequence[Flag] = ()
) -> Markup:
    """Lanes of bars over time, from 0 to the axis's end; ``legend`` gives (name, CSS class). Twice a chart's width.

    ``flags``, by time, are numbered above the lanes.
    """
    lane_height, left, whole = 22.0, 130.0, 2 * _WIDTH
    above = _FLAG_HEIGHT if flags else 0.0
    height = above + _TOP + lane_height * len(lanes) + _BOTTOM
    end = max([1e-9, x.to or 0.0, *(bar.end for bars in lanes.values() for bar in bars)])
    scale = _Scale(0.0, end, _ticks(0.0, end, x.unit, about=12))

    def place(value: float) -> float:
        return left + scale.share(value) * (whole - left - _RIGHT)

    parts: list[Markup] = []
    foot = height - _BOTTOM
    for tick in scale.ticks:
        parts += _upright(place(tick), foot, x.text(tick))
    tops = {name: above + _TOP + number * lane_height for number, name in enumerate(lanes)}
    for name, bars in lanes.items():
        top = tops[name]
        parts.append(_text(name, left - 8, top + 14, anchor="end"))
        for bar in bars:
            y, tall = (top + 14, 4.0) if bar.thin else (top + 3, 15.0)
            begin, width = place(bar.start), max(0.8, place(bar.end) - place(bar.start))
            title = _tag("title", bar.title)
            parts.append(_tag("rect", title, class_=bar.style, x=begin, y=y, width=width, height=tall))
    beside = -math.inf
    for number, flag in enumerate(flags, 1):
        at = place(flag.at)
        beside = max(at, beside + _FLAG_HEIGHT)  # beside the one before, not over it
        parts += _flag(number, flag.title, at, beside, tops.get(flag.lane, above))
    parts.append(_axis_title(x.title, height, (left + whole - _RIGHT) / 2))
    return _chart(whole, height, f"timeline by {x.title}", parts) + _legend(legend)


def stacked_bars(wholes: Sequence[Whole], legend: Sequence[tuple[str, str]], label: str) -> Markup:
    """A bar from 0 to 100 % for each whole; ``legend`` gives (name, CSS class). Twice a chart's width."""
    if not wholes:
        return Markup()
    row, left, whole_width = 28.0, 130.0, 2 * _WIDTH
    width = whole_width - left - _RIGHT
    height = _TOP + row * len(wholes) + _BOTTOM / 2
    parts: list[Markup] = []
    for tenth in range(0, 11, 2):
        parts += _upright(left + width * tenth / 10, height - _BOTTOM / 2, f"{10 * tenth} %")
    for number, whole in enumerate(wholes):
        top = _TOP + number * row
        parts.append(_text(whole.name, left - 8, top + 17, anchor="end"))
        begin = left
        for part in whole.parts:
            wide = width * part.share
            fitting = next((text for text in part.labels if _LETTER * len(text) + 4 <= wide), "")
            bar = _tag("rect", x=begin, y=top + 3, width=wide, height=21)
            label_of_bar = _text(fitting, begin + wide / 2, top + 17)
            parts.append(_tag("g", _tag("title", part.title), bar, label_of_bar, class_=part.style))
            begin += wide
    return _chart(whole_width, height, label, parts) + _legend(legend)


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
        if high - low < _LEAST_RANGE:
            pad = max(0.5, abs(low) / 1000)  # above the rounding error of a large value
            low, high = (low, low + 2 * pad) if axis.from_zero else (low - pad, low + pad)
        ticks = _ticks(low, high, axis.unit)
        return cls(min(low, ticks[0]), high, ticks) if axis.from_zero else cls(low, high, ticks)

    def share(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class _Area:
    x: _Scale
    y: _Scale

    def place(self, x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + self.x.share(x) * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - self.y.share(y) * (_HEIGHT - _TOP - _BOTTOM),
        )


def _ticks(low: float, high: float, unit: float, about: int = 6) -> tuple[float, ...]:
    """Round numbers between ``low`` and ``high``."""
    raw = (high - low) / unit / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s for s in (1, 2, 5, 10) if s * power >= raw * 0.999) * power * unit
    first = math.ceil(low / step - 1e-9)
    return tuple(i * step for i in range(first, math.floor(high / step + 1e-9) + 1)) or (low,)


def _tag(name: str, *content: str, **attributes: str | float) -> Markup:
    """An element. Text and attributes are escaped; elements are not."""
    words = [name]
    for key, value in attributes.items():
        shown = f"{value:.1f}" if isinstance(value, float) else value
        words.append(Markup('{}="{}"').format(key.rstrip("_").replace("_", "-"), shown))
    return Markup("<{}>{}</{}>").format(Markup(" ").join(words), Markup().join(content), name)


def _text(text: str, x: float, y: float, *, anchor: str = "middle") -> Markup:
    return _tag("text", text, x=x, y=y, text_anchor=anchor)


def _upright(x: float, foot: float, text: str) -> list[Markup]:
    """A line of the grid, with a text below it."""
    return [_tag("line", class_="grid", x1=x, x2=x, y1=_TOP, y2=foot), _text(text, x, foot + 16)]


def _chart(width: float, height: float, label: str, parts: Sequence[Markup]) -> Markup:
    return _tag("svg", *parts, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label)


def _grid(area: _Area, x: Axis, y: Axis) -> list[Markup]:
    foot, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for tick in area.y.ticks:
        _, at = area.place(area.x.low, tick)
        parts.append(_tag("line", class_="grid", x1=_LEFT, x2=right, y1=at, y2=at))
        parts.append(_text(y.text(tick), _LEFT - 6, at + 4, anchor="end"))
    for tick in area.x.ticks:
        at, _ = area.place(tick, area.y.low)
        parts.append(_tag("line", class_="tick", x1=at, x2=at, y1=foot, y2=foot + 4))
        parts.append(_text(x.text(tick), at, foot + 16))
    parts.append(_tag("line", class_="axis", x1=_LEFT, x2=right, y1=foot, y2=foot))
    parts.append(_axis_title(x.title, _HEIGHT, (_LEFT + right) / 2))
    turned = f"translate(14 {(_TOP + foot) / 2:.0f}) rotate(-90)"
    parts.append(_tag("text", y.title, class_="title", transform=turned, text_anchor="middle"))
    return parts


def _drawn(one: Series) -> list[tuple[float, float]]:
    return [point for point in one.points if all(abs(value) < _MOST for value in point)]


def _series(one: Series, area: _Area, x: Axis, y: Axis) -> list[Markup]:
    points = _drawn(one)
    color = f"c{one.color % 8}{' faint' if one.faint else ''}"
    parts = []
    if one.line and len(points) > 1:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (area.place(*p) for p in thinned(points)))
        parts.append(_tag("polyline", _tag("title", one.name), class_=f"line {color}", points=path))
    if one.marks or len(points) == 1:
        for px, py in points:
            a, b = area.place(px, py)
            title = _tag("title", f"{one.name} {y.text(py)} at {x.text(px)}".strip())
            parts.append(_tag("circle", title, class_=f"mark {color}", cx=a, cy=b, r=2.6))
    return parts


def _flag(number: int, title: str, at: float, beside: float, top: float) -> list[Markup]:
    """A number in a circle, and a line from it to the lane."""
    middle = _FLAG_HEIGHT / 2
    line = _tag("line", class_="pole", x1=beside, x2=at, y1=middle, y2=top + 18)
    circle = _tag("circle", cx=beside, cy=middle, r=middle - 1)
    named = _tag(
        "g", _tag("title", f"{number}: {title}"), circle, _text(str(number), beside, middle + 4), class_="flag"
    )
    return [line, named]


def _axis_title(title: str, height: float, middle: float) -> Markup:
    return _tag("text", title, class_="title", x=middle, y=height - 4, text_anchor="middle")


def _legend(entries: Sequence[tuple[str, str]]) -> Markup:
    if len(entries) < 2:
        return Markup()
    items = (_tag("span", _tag("i", class_=style), name) for name, style in entries)
    return _tag("div", *items, class_="legend")
