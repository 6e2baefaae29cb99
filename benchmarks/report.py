"""How every benchmark reports its measurements: one JSON shape for scripts, one table for people.

It is independent of what is measured, and adds no figures of its own, so that a report comes from a single run.
"""

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

REPOSITORY = Path(__file__).resolve().parent.parent


def write_report(
    path: Path | None,
    *,
    benchmark: str,
    ratios: dict[str, float],
    figures: dict[str, Any],
    against: dict[str, str],
) -> None:
    """Print a benchmark's result and, with a ``path``, write it there as JSON.

    Args:
        path: file for ``{"benchmark", "machine", "commit", "ratios", "figures", "against"}``; None: print only.
        benchmark: its name.
        ratios: dimensionless results, by name.
        figures: everything else, with units in the names; lists of flat dicts are shown as tables.
        against: for each ratio, what it divides by.

    Raises:
        ValueError: a ratio does not say what it divides by.
    """
    report = make_report(benchmark=benchmark, ratios=ratios, figures=figures, against=against)
    _print(report)
    if path is not None:
        write_json(path, report)


def make_report(
    *, benchmark: str, ratios: dict[str, float], figures: dict[str, Any], against: dict[str, str]
) -> dict[str, Any]:
    """What `write_report` writes.

    Raises:
        ValueError: a ratio does not say what it divides by.
    """
    missing = sorted(ratios.keys() - against.keys())
    if missing:
        raise ValueError(f"ratio {missing[0]!r} of benchmark {benchmark!r} does not say what it is against")
    return {
        "benchmark": benchmark,
        "machine": describe_machine(),
        "commit": current_commit(),
        "ratios": ratios,
        "figures": figures,
        "against": against,
    }


def write_json(path: Path, report: dict[str, Any]) -> None:
    """Write a report to a file, which holds the one or the other if this process ends meanwhile."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps(report, indent=2) + "\n")
    new.replace(path)


def describe_machine() -> dict[str, Any]:
    """What the figures depend on: processor, cores available to this process, memory, versions."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": _version("torch"),
        "grpcio": _version("grpcio"),
    }


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
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
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
    table = Table("ratio", "value", "against")
    for name, value in report["ratios"].items():
        table.add_row(name, f"{value:.4g}", report["against"][name])
    console.print(table)
    for name, value in report["figures"].items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            console.print(_rows(name, value))
        else:
            console.print(f"{name}: {_cell(value)}", highlight=False)


def _rows(title: str, rows: list[dict[str, Any]]) -> Table:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*(_cell(row.get(column, "")) for column in columns))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(part)}" for key, part in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
