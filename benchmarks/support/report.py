"""How every benchmark reports its measurements: one JSON shape for scripts, one table for people.

It adds no figures of its own, so that a report comes from a single run.
"""

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from support import REPOSITORY


class Ratio(NamedTuple):
    """A dimensionless result."""

    value: float
    against: str
    """What it divides by."""
    less_is_better: bool = False


Ratios = dict[str, Ratio]


def paired(above: Iterable[float], below: Iterable[float]) -> list[float]:
    """Quotients, pair by pair: of the same round, or of the same seed."""
    return [one / other for one, other in zip(above, below, strict=True)]


def command(description: str | None) -> argparse.ArgumentParser:
    """The flags of every benchmark, which then adds its own."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    return parser


def write_report(path: Path | None, benchmark: str, ratios: Ratios, figures: dict[str, Any]) -> None:
    """Print a benchmark's result and, with a ``path``, write it there as JSON.

    ``figures``: everything but the ratios, with units in the names; lists of flat dicts are shown as tables.
    """
    _print(save_report(path, benchmark, ratios, figures))


def save_report(path: Path | None, benchmark: str, ratios: Ratios, figures: dict[str, Any]) -> dict[str, Any]:
    """Only write it, so that the file holds the old or the new one if this process ends meanwhile; returns it."""
    report = {
        "benchmark": benchmark,
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "torch": _version("torch"),
            "grpcio": _version("grpcio"),
        },
        "commit": current_commit(),
        "ratios": {name: ratio.value for name, ratio in ratios.items()},
        "figures": figures,
        "against": {name: ratio.against for name, ratio in ratios.items()},
        "less_is_better": [name for name, ratio in ratios.items() if ratio.less_is_better],
    }
    if path is not None:
        new = path.with_name(f".{path.name}.new")
        new.write_text(json.dumps(report, indent=2) + "\n")
        new.replace(path)
    return report


def read_entries(path: Path | None) -> Iterator[dict[str, Any]]:
    """Every whole JSON line of a file that keeps what a benchmark of hours has finished; none if there is no file."""
    if path is None or not path.exists():
        return
    for line in path.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # torn by an interruption
            yield json.loads(line)


def append_entry(path: Path | None, entry: dict[str, Any]) -> None:
    """Add an entry, if there is to be a file."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def current_commit() -> str:
    """The commit that was measured, ``-dirty`` if the tree differs from it; ``unknown`` outside a repository."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],  # noqa: S607 - git as the user has it
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _print(report: dict[str, Any]) -> None:
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 160)
    machine = report["machine"]
    console.print(
        f"[bold]{report['benchmark']}[/bold] at {report['commit']}, {machine['cores']} x {machine['processor']}"
    )
    rows = [
        {"ratio": name, "value": value, "against": report["against"][name]} for name, value in report["ratios"].items()
    ]
    console.print(_table(None, rows))
    for name, value in report["figures"].items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            console.print(_table(name, value))
        else:
            console.print(f"{name}: {_cell(value)}", highlight=False)


def _table(title: str | None, rows: list[dict[str, Any]]) -> Table:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*(_cell(row.get(column, "")) for column in columns))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(part)}" for key, part in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
