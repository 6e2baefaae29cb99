"""Writes the tables and plots of docs/explanation/published.md: published figures beside those of the simulation.

The tables come from benchmarks/results/published.json, the curves from `diloco.simulate.published`.

python scripts/generate_published.py            # write them
python scripts/generate_published.py --check    # fail if they are not what was calculated
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from generated import REPOSITORY, main, with_tables

from diloco.local.report.svg import Axis, Series, line_chart
from diloco.simulate.published import bandwidth, capacity, goodput, tables

PAGE: Final = REPOSITORY / "docs/explanation/published.md"
PLOTS: Final = REPOSITORY / "docs/explanation/published"
MEASURED: Final = REPOSITORY / "benchmarks/results/published.json"
STYLES: Final = REPOSITORY / "trainer/diloco/local/templates/report.css"
COMMAND: Final = "make published"
PLOTTED_MODEL: Final = "10B"
Figures = dict[str, Any]
"""What the benchmark reports."""


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _head(*columns: str) -> Iterator[str]:
    yield from (_line(*columns), f"|{'---|' * len(columns)}")


def _by_row(cells: Sequence[Figures]) -> dict[str, list[Figures]]:
    rows: dict[str, list[Figures]] = {}
    for cell in cells:
        rows.setdefault(cell["row"], []).append(cell)
    return rows


def _table(cells: Sequence[Figures], first: str, text: Callable[[Figures], str]) -> Iterator[str]:
    """A line for each row of the cells, with a column for each of theirs."""
    rows = _by_row(cells)
    columns = [cell["column"] for cell in next(iter(rows.values()))]
    yield from _head(first, *columns)
    for name, row in rows.items():
        yield _line(name, *(text(cell) for cell in row))


def goodput_table(figures: Figures) -> Iterator[str]:
    """Published, and ours by the closed forms."""
    yield from _table(figures["goodput"], "chips", lambda cell: f"{cell['paper']:g}, {cell['ours']:.1f}")


def engine_table(figures: Figures) -> Iterator[str]:
    """What the engine makes of the decoupled rows."""
    cells = [cell for cell in figures["goodput"] if "engine" in cell]
    yield from _table(cells, "chips", lambda cell: f"{cell['ours']:.1f}, {cell['engine']:.1f}, {cell['merged']:.1f}")


def uptime_table(figures: Figures) -> Iterator[str]:
    """The least of each row, of drawn failures."""
    rows = _by_row([cell for cell in figures["goodput"] if "uptime" in cell])
    yield from _head("learners", "published", "ours, with the most chips")
    for learners, (name, cells) in zip(tables.DECOUPLED, rows.items(), strict=True):
        published = f"{tables.UPTIME[learners]:g}" if learners in tables.UPTIME else "-"
        yield _line(name, published, f"{min(cell['uptime'] for cell in cells):.2f}")


def usual_table(figures: Figures) -> Iterator[str]:
    """Goodput with pauses as in a usual cluster."""
    rows = figures["usual_pauses"]
    yield from _head(*(row["row"] for row in rows))
    yield _line(*(f"{row['goodput']:.1f}" for row in rows))


def bandwidth_table(figures: Figures) -> Iterator[str]:
    """Published; ours where it is another value of the grid."""

    def text(cell: Figures) -> str:
        return f"{cell['paper']:g}" if cell["steps"] == 0 else f"{cell['paper']:g} (ours {cell['ours']:.3g})"

    yield from _table(figures["bandwidth"], "utilization", text)


def bandwidth_counts(figures: Figures) -> Iterator[str]:
    """How many cells agree."""
    steps = [abs(cell["steps"]) for cell in figures["bandwidth"]]
    near, wider = sum(one <= 1 for one in steps), figures["bandwidth_16_bits_within_a_step"]
    yield f"Of {len(steps)} cells {steps.count(0)} are the same value of the grid, {near} at most one step away;"
    yield f"with 16 and 4 bits a parameter {wider} are."


def places_table(figures: Figures) -> Iterator[str]:
    """Rates between places."""
    yield from _head("places", "method", "published", "ours", "ours, on the grid")
    for cell in figures["places"]:
        ours = (f"{cell[name]:.3g}" for name in ("ours", "on_grid"))
        yield _line(cell["column"].partition(" ")[0], cell["row"], f"{cell['paper']:g}", *ours)


def faster_table(figures: Figures) -> Iterator[str]:
    """Blocking and decoupled steps."""
    columns = ("blocking step", "decoupled step", "times faster", "with a syncer at that rate", "times faster")
    yield from _head("link", *columns)
    for cell in figures["faster"]:
        blocking, decoupled, narrow = (cell[f"{name}_seconds"] for name in ("blocking", "decoupled", "syncer_at_rate"))
        times = f"{blocking / narrow:.2g}"
        yield _line(
            cell["column"], f"{blocking:.3g} s", f"{decoupled:.3g} s", f"{cell['ours']:.0f}", f"{narrow:.3g} s", times
        )


def capacity_table(figures: Figures) -> Iterator[str]:
    """Mixed generations and scavenged capacity."""
    yield from _head("what", "case", "published", "ours")
    for cell in figures["capacity"]:
        yield _line(cell["row"], cell["column"], f"{cell['paper']:g}", f"{cell['ours']:.3g}")


TABLES: Final[Mapping[str, Callable[[Figures], Iterator[str]]]] = {
    "goodput": goodput_table,
    "engine": engine_table,
    "uptime": uptime_table,
    "usual": usual_table,
    "bandwidth": bandwidth_table,
    "counts": bandwidth_counts,
    "places": places_table,
    "faster": faster_table,
    "capacity": capacity_table,
}


def goodput_plot() -> str:
    """Lines by the closed forms, points as published."""
    exponents = [number / 8 for number in range(33)]
    forms: dict[str, Callable[[int], float]] = {
        "data-parallel": lambda chips: goodput.data_parallel(chips, goodput.CALIBRATED),
        "elastic": lambda chips: goodput.elastic(chips, goodput.CALIBRATED),
    }
    printed = {"data-parallel": tables.DATA_PARALLEL, "elastic": tables.ELASTIC}
    for learners, row in tables.DECOUPLED.items():
        forms[f"M = {learners}"] = lambda chips, learners=learners: goodput.decoupled(  # type: ignore[misc]  # bound now
            learners, chips, goodput.CALIBRATED
        )
        printed[f"M = {learners}"] = row
    series = []
    for color, (name, form) in enumerate(forms.items()):
        line = [(one, 100 * form(round(tables.CHIPS[0] * 2**one))) for one in exponents]
        points = [
            (math.log2(chips / tables.CHIPS[0]), paper)
            for chips, paper in zip(tables.CHIPS, printed[name], strict=True)
        ]
        series += [Series(name, line, color), Series("", points, color, marks=True, line=False)]
    x = Axis("chips", lambda value: f"{tables.CHIPS[0] * 2**value:,.0f}")
    return standalone(series, x, Axis("goodput, %", lambda value: f"{value:g}", from_zero=True, to=100))


def bandwidth_plot() -> str:
    """Lines by the graph, points as published."""
    model = bandwidth.MODELS[PLOTTED_MODEL]
    series = []
    for color, (method, models) in enumerate(tables.BANDWIDTH.items()):
        exchange = bandwidth.published_exchange(method, model)
        line = [(math.log10(rate), 100 * bandwidth.utilization(model, exchange, rate)) for rate in bandwidth.GRID_GBITS]
        points = [
            (math.log10(rate), 100 * wanted)
            for rate, wanted in zip(models[PLOTTED_MODEL], tables.UTILIZATIONS, strict=True)
        ]
        series += [Series(method, line, color), Series("", points, color, marks=True, line=False)]
    x = Axis("Gbit/s", lambda value: f"{10**value:.2g}" if value < 2 else f"{10**value:.0f}")
    return standalone(series, x, Axis("utilization, %", lambda value: f"{value:g}", from_zero=True, to=100))


def faster_plot(figures: Figures) -> str:
    """Times faster over the rate."""
    points = [(float(cell["column"].partition(" ")[0]), cell["ours"]) for cell in figures["faster"]]
    least = [(points[0][0], tables.FASTER), (points[-1][0], tables.FASTER)]
    series = [Series("simulated", points, 0, marks=True), Series("published: more than", least, 1)]
    x = Axis("Gbit/s of each region", lambda value: f"{value:g}")
    return standalone(series, x, Axis("times faster than blocking", lambda value: f"{value:g}", from_zero=True))


def capacity_plot() -> str:
    """Wall clock over the added capacity."""
    line = [(number / 20, capacity.scavenged(number / 20)) for number in range(61)]
    points = list(tables.SCAVENGED.items())
    series = [Series("half of the work with it", line, 0), Series("published", points, 1, marks=True, line=False)]
    x = Axis("added capacity, %", lambda value: f"{100 * value:g}")
    return standalone(series, x, Axis("wall clock", lambda value: f"{value:g}", from_zero=True, to=1.0))


def standalone(series: Sequence[Series], x: Axis, y: Axis) -> str:
    """A chart as a file: the report's, with its styles and the legend inside."""
    chart = str(line_chart(series, x, y)).partition("</svg>")[0]
    box = re.search(r'viewBox="0 0 (\d+) (\d+)"', chart)
    assert box is not None
    width, height = int(box[1]), int(box[2])
    names, at = [], 74
    for one in series:
        if one.name:
            names.append(f'<rect class="c{one.color} mark" x="{at}" y="{height + 6}" width="9" height="9"/>')
            names.append(f'<text x="{at + 13}" y="{height + 15}">{one.name}</text>')
            at += 30 + 6 * len(one.name)
    colors = re.search(r"--c0:[^\n]*", STYLES.read_text(encoding="utf-8"))
    assert colors is not None
    shades = dict(re.findall(r"--c(\d): (#\w+)", colors[0]))
    style = "".join(f".c{number}{{color:{shade}}}" for number, shade in shades.items())
    style += ".line{fill:none;stroke:currentColor;stroke-width:1.8}.mark{fill:currentColor}.grid{stroke:#d8dce2}"
    style += ".axis,.tick{stroke:#7a7f87}text{font:11px sans-serif;fill:#5a6069}"
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 24}"'
    chart = re.sub(r'^<svg viewBox="[^"]*"', opening, chart)
    background = f'<style>{style}</style><rect width="{width}" height="{height + 24}" fill="#ffffff"/>'
    return chart.replace(">", f">{background}", 1) + "".join(names) + "</svg>\n"


def made() -> dict[Path, str]:
    """Every file."""
    figures = json.loads(MEASURED.read_text(encoding="utf-8"))["figures"]
    plots = {
        "goodput": goodput_plot(),
        "bandwidth": bandwidth_plot(),
        "faster": faster_plot(figures),
        "capacity": capacity_plot(),
    }
    return {PAGE: with_tables(PAGE, "published", TABLES, figures)} | {
        PLOTS / f"{name}.svg": plot for name, plot in plots.items()
    }


if __name__ == "__main__":
    sys.exit(main(made, COMMAND))
