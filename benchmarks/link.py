"""One large fragment through a long or thin link, with mTLS, beside one and eight plain TCP connections.

The link's rate and delay are in its packets (`delay_line`), so TCP sees them. Each cell, a rate and a round trip, has a
network of its own, in which all ways take turns, up and down, on new connections (cold) and again (warm). A ratio is
eight plain connections' time over ours in the same round, the median over the rounds. Control messages are timed
meanwhile. It needs root and /dev/net/tun, and says so where they cannot be had.

    python benchmarks/link.py --json link.json
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from link_cell import UNAVAILABLE
from report import write_report

CELLS: Final = ((1000.0, 20.0, 128), (1000.0, 150.0, 128), (100.0, 20.0, 24), (100.0, 150.0, 24))
"""Mbit/s, milliseconds there and back, MiB."""


def run_cell(mbit: float, round_trip_ms: float, mib: int, rounds: int) -> dict[str, Any]:
    """A cell's figures, measured in a process of its own."""
    config = {"mbit": mbit, "round_trip_ms": round_trip_ms, "mib": mib, "rounds": rounds}
    script = Path(__file__).with_name("link_cell.py")
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(config)], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode == UNAVAILABLE:
        sys.exit(UNAVAILABLE)  # it has said why
    done.check_returncode()
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def name_of(cell: dict[str, Any]) -> str:
    """Such as ``1000mbit_150ms``."""
    return f"{cell['mbit']:g}mbit_{cell['round_trip_ms']:g}ms"


def ratios_of(cell: dict[str, Any], base: str) -> dict[str, float]:
    """The ways' rates over those of ``base``, by direction and state."""
    seconds = {(one["way"], one["direction"], one["state"]): one["seconds"] for one in cell["seconds"]}
    return {
        f"{name_of(cell)}_{direction}_{state}_over_{base}": statistics.median(
            theirs / ours for theirs, ours in zip(seconds[base, direction, state], values, strict=True)
        )
        for (way, direction, state), values in seconds.items()
        if way == "wire"
    }


def rows_of(cell: dict[str, Any]) -> list[dict[str, Any]]:
    """Rates in Mbit/s, one row for each way, direction and state."""
    bits = cell["mib"] * 2**20 * 8
    return [
        {
            "cell": name_of(cell),
            "way": one["way"],
            "direction": one["direction"],
            "state": one["state"],
            "median_mbit_per_second": bits / statistics.median(one["seconds"]) / 1e6,
        }
        for one in cell["seconds"]
    ]


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there too")
    parser.add_argument("--rounds", type=int, default=3, help="transfers of each kind (default: 3)")
    parser.add_argument("--cell", action="append", metavar="MBIT,MS", help="only this cell; may be given again")
    arguments = parser.parse_args()
    chosen = [cell for cell in CELLS if not arguments.cell or f"{cell[0]:g},{cell[1]:g}" in arguments.cell]
    if not chosen:
        parser.error(f"--cell: use one of {', '.join(f'{mbit:g},{ms:g}' for mbit, ms, _ in CELLS)}")

    cells = [run_cell(*cell, arguments.rounds) for cell in chosen]
    ratios: dict[str, float] = {}
    against: dict[str, str] = {}
    for cell in cells:
        for base, text in (("eight", "eight plain TCP connections"), ("one", "one plain TCP connection")):
            found = ratios_of(cell, base)
            ratios |= found
            against |= dict.fromkeys(found, f"{text} through the same link, the same round")
        control = f"{name_of(cell)}_control_99_round_trips"
        ratios[control] = cell["control_ms_99"]["wire"] / cell["round_trip_ms"]
        against[control] = "a round trip of the link"
    write_report(
        arguments.json,
        benchmark="link",
        ratios=ratios,
        figures={
            "rates": [row for cell in cells for row in rows_of(cell)],
            "cells": [
                {
                    "cell": name_of(cell),
                    "mib": cell["mib"],
                    "packet_bytes": cell["packet_bytes"],
                    "queued_bytes": cell["queued_bytes"],
                    "congestion_control": cell["congestion_control"],
                    "idle_control_ms": cell["idle_control_ms"],
                    **{f"control_ms_99_{way}": value for way, value in cell["control_ms_99"].items()},
                }
                for cell in cells
            ],
        },
        against=against,
    )


if __name__ == "__main__":
    main()
