"""Writes the measured quality into docs/explanation/quality.md, README.md and the plan's recommendations.

All come from benchmarks/results/quality.json, so that no figure is typed by hand.

python scripts/generate_quality.py            # write them
python scripts/generate_quality.py --check    # fail if they are not what was measured
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from generated import REPOSITORY, SourceError, main, with_tables

PAGE = REPOSITORY / "docs/explanation/quality.md"
MEASURED = REPOSITORY / "benchmarks" / "results" / "quality.json"
README = REPOSITORY / "README.md"
ROW = re.compile(r"^\| loss at equal tokens .*$", re.MULTILINE)
COMMAND = "make quality"
MODULE = REPOSITORY / "trainer" / "diloco" / "spec" / "recommendations.py"
ROWS = re.compile(r"(# `make quality` writes from here\n).*(# to here\n)", re.DOTALL)
BATCHES = (("A", 400), ("batch 8", 800), ("B", 1600), ("batch 2", 3200), ("batch 1", 6400))
"""Workloads and steps of equal tokens, each with half the batch of the one before."""
PARTS = ("alone", "lock_step", "faults", "three", "cuts", "mean", "faults_no_token_weights")
CODECS = ("int4", "int8_down")
FASTER = "data_parallel_muon"
"""The reference for the others; how it compares itself is stated separately."""
ASIDE = (*PARTS, *CODECS)
"""Variants that are held against decoupled training; the others against data-parallel training."""
RECOMMENDED = (
    "steps",
    "setting",
    "optimizer",
    "interval",
    "compression",
    "downlink",
    "outer_learning_rate",
    "outer_momentum",
    "loss_percent",
    "seeds",
    "bytes_ratio",
    "merged_share",
)
"""The fields of a recommendation, in their order."""
README_STEPS = (400, 1600, 6400)
EMPTY = "MEASURED: tuple[Recommendation, ...] = ()"
Figures = dict[str, Any]


def batches(figures: Figures) -> Iterator[str]:
    """Data-parallel training at equal tokens and ever smaller batches."""
    yield from (
        "| sequences a step | steps | learning rate | loss | against twice the batch |",
        "|---|---|---|---|---|",
    )
    before: float | None = None
    for workload, steps in BATCHES:
        found = [
            search
            for search in figures["searches"]
            if (search["workload"], search["steps"], search["variant"]) == (workload, steps, "data_parallel")
        ]
        if not found or found[0]["loss"] is None:
            continue
        loss = found[0]["loss"]
        sequences = 4 * figures["workloads"][workload]["sequences"]
        change = "" if before is None else f"{100 * (loss / before - 1):+.1f} %"
        yield f"| {sequences} | {steps} | {found[0]['chosen']['adamw']:g} | {loss:.3f} | {change} |"
        before = loss


def against_data_parallel(workload: str) -> Callable[[Figures], Iterator[str]]:
    """The main rows of a setting, all its budgets."""
    return lambda figures: _rows(figures, workload, aside=False)


def against_decoupled(workload: str) -> Callable[[Figures], Iterator[str]]:
    """What decoupled training is made of, and what happens to it."""
    return lambda figures: _rows(figures, workload, aside=True)


def _rows(figures: Figures, workload: str, *, aside: bool) -> Iterator[str]:
    other = "decoupled" if aside else "data-parallel of its optimizer"
    yield (
        f"| steps | method | inner rates; outer | loss | sd | seeds | against {other} | merges a fragment"
        " | tokens trained; merged | MB up |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in sorted(figures["rows"], key=lambda row: int(row["steps"])):
        if row["workload"] != workload or (row["variant"] in ASIDE) != aside:
            continue
        difference = next(
            (
                found
                for found in figures["differences"]
                if all(found[name] == row[name] for name in ("workload", "steps", "variant"))
                and row["variant"] != FASTER
            ),
            None,
        )
        seeds = len(row["seeds"])
        mark = {0: "", seeds: "\\*"}.get(row["earlier_seeds"], f", {row['earlier_seeds']}\\*")
        merged = row["merged_tokens"] / row["trained_tokens"]
        sent = "" if row["pushed_bytes"] is None else f"{row['pushed_bytes'] / 1e6:.0f}"
        yield (
            f"| {row['steps']} | {row['label']} | {_rates(row['rates'])} | {row['loss']:.3f}"
            f" | {_plain(row['sd'], '.3f')} | {seeds}{mark}"
            f" | {_percent(difference)} | {_plain(row['merges_a_fragment'], '.1f')}"
            f" | {row['trained_tokens'] / 1e6:.2f}M; {100 * merged:.0f} % | {sent} |"
        )


def _rates(rates: dict[str, float]) -> str:
    """The inner learning rates, of AdamW and of Muon, and the outer one with its momentum, as in a manifest."""
    inner = " / ".join(f"{rates[name]:g}" for name in ("adamw", "muon") if rates.get(name))
    if rates.get("effective") is None:
        return inner
    momentum = rates.get("momentum") or 0.0
    return f"{inner}; {rates['effective'] * (1 - momentum):g}, {momentum:g}"


def account(figures: Figures) -> Iterator[str]:
    """How much was run."""
    hours = figures["cpu_seconds"] / 3600
    yield f"{figures['runs']} runs, {hours:.1f} CPU hours in all; {figures['earlier_runs']} of them earlier (\\*)."


def experiments(figures: Figures) -> Iterator[str]:
    """Each experiment: what there was, the best of what was tried, and what was concluded."""
    yield "| experiment | base: loss | best of what was tried: loss | change | runs | gate | verdict |"
    yield "|---|---|---|---|---|---|---|"
    for one in figures["experiments"]:
        base, best = one["base"], one["best"]
        if base is None or best is None:
            continue
        yield (
            f"| {one['title']} (`{one['plan']}`) | {_point(base)} | {_point(best, base)}"
            f" | {one['percent']:+.1f} % | {one['runs']} | {one['gate']} | {one['verdict']} |"
        )


def _point(point: Figures, base: Figures | None = None) -> str:
    """``base``: its setting is not repeated."""
    setting = "" if base is None or base["workload"] == point["workload"] else f"{point['workload']}, "
    return f"{point['label']}, {setting}{point['steps']} steps, {_rates(point['rates'])}: {point['loss']:.3f}"


TABLES: dict[str, Callable[[Figures], Iterator[str]]] = {
    "batches": batches,
    "a": against_data_parallel("A"),
    "b": against_data_parallel("B"),
    "batch_2": against_data_parallel("batch 2"),
    "nano": against_data_parallel("nano"),
    "a_aside": against_decoupled("A"),
    "account": account,
    "experiments": experiments,
}


def _percent(difference: dict[str, Any] | None, digits: int = 1) -> str:
    if difference is None or difference["percent"] is None:
        return ""
    half = "" if difference["half_width"] is None else f" ± {difference['half_width']:.{digits}f}"
    return f"{difference['percent']:+.{digits}f}{half} %"


def _plain(value: float | None, form: str = "g") -> str:
    return "" if value is None else f"{value:{form}}"


def page() -> str:
    """The page that is there, with the tables anew."""
    return with_tables(PAGE, "quality", TABLES, json.loads(MEASURED.read_text(encoding="utf-8"))["figures"])


def readme() -> str:
    """The README that is there, with its row on loss anew.

    Raises:
        SourceError: it has no such row.
    """
    figures = json.loads(MEASURED.read_text(encoding="utf-8"))["figures"]
    old = README.read_text(encoding="utf-8")
    if ROW.search(old) is None:
        raise SourceError(f"{README}: has no row that begins with '| loss at equal tokens '")
    searched = ", ".join(_range(figures, steps, "decoupled", "data_parallel") for steps in README_STEPS)
    default = _range(figures, README_STEPS[-1], "by_default_averaged", "data_parallel_averaged")
    steps = ", ".join(map(str, README_STEPS))
    what = (
        f"loss at equal tokens after {steps} steps: AdamW, H = 24, rates searched; {README_STEPS[-1]}, as by default,"
        " last models averaged"
    )
    return ROW.sub(f"| {what} | 0 | {searched}; {default} higher |", old)


def _range(figures: Figures, steps: int, variant: str, against: str) -> str:
    """How much higher the loss is, in settings A and B."""
    found = [
        round(one["percent"], 1)
        for one in figures["differences"]
        if (one["steps"], one["variant"], one["against"]) == (steps, variant, against) and one["workload"] in ("A", "B")
    ]
    low, high = min(found), max(found)
    return f"{low:g} %" if low == high else f"{low:g} to {high:g} %"


def module() -> str:
    """The recommendations that are there, with the rows anew.

    Raises:
        SourceError: there is no place for them.
    """
    figures = json.loads(MEASURED.read_text(encoding="utf-8"))["figures"]
    old = MODULE.read_text(encoding="utf-8")
    if ROWS.search(old) is None:
        raise SourceError(f"{MODULE}: has no '# `make quality` writes from here' and '# to here' to write between")
    rows = "".join(f"    {_recommendation(row)},\n" for row in figures["recommendations"])
    text = f"MEASURED: tuple[Recommendation, ...] = (\n{rows})\n" if rows else f"{EMPTY}\n"
    return ROWS.sub(lambda found: f"{found[1]}{text}{found[2]}", old)


def _recommendation(row: Figures) -> str:
    values = ", ".join(json.dumps(row[name]) for name in RECOMMENDED)
    return f"Recommendation({values})"


if __name__ == "__main__":
    sys.exit(main(lambda: {PAGE: page(), MODULE: module(), README: readme()}, COMMAND))
