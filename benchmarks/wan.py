"""Benchmark `wan`: one job over links between regions, against training that waits for the links.

Run it as root with

    python benchmarks/wan.py --json benchmarks/results/wan.json --cache benchmarks/results/wan-cells.jsonl

docs/reference/benchmarks.md says what is compared. Every finished cell is kept in the cache, with the commit that it
was measured at, so an interrupted benchmark goes on where it was. The report has whatever has been run.
"""

import hashlib
import json
import sys
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from support.links.delay_line import LinkShape, Network, NoNetworkError
from support.report import append_entry, command, current_commit, read_entries, write_report
from support.wan.cells import FULL, LINKS, METHODS, SMALL, Cell, Size, run
from support.wan.figures import figures, ratios


def cells(size: Size) -> list[Cell]:
    """All cells; whole seeds first, so that an early report compares what was run alike."""
    return [Cell(link, method, seed, size) for seed in range(size.seeds) for link in LINKS for method in _methods(link)]


def _methods(link: str) -> list[str]:
    """One process uses no link, so it is run once."""
    return [method for method in METHODS if method != "alone" or link == "unlinked"]


def key(cell: Cell) -> str:
    """Digest of everything that the cell is, but for the code."""
    link = LINKS[cell.link]
    parts = [cell.manifest(), cell.method, link and asdict(link)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def read_cache(path: Path | None) -> dict[str, dict[str, Any]]:
    """Results by key; of several the last."""
    return {entry["key"]: entry["result"] for entry in read_entries(path)}


def main() -> None:
    """Run what is not in the cache yet, then report."""
    parser = command(__doc__)
    parser.add_argument("--cache", type=Path, help="JSON lines of finished cells; go on from it")
    parser.add_argument("--small", action="store_true", help="a short run of each cell, one seed")
    parser.add_argument("--link", default="*", help=f"run only these links ({', '.join(LINKS)}; a shell pattern)")
    parser.add_argument("--method", default="*", help=f"run only these methods ({', '.join(METHODS)}; a shell pattern)")
    arguments = parser.parse_args()
    planned = cells(SMALL if arguments.small else FULL)
    kept = read_cache(arguments.cache)
    results = {cell: kept[key(cell)] for cell in planned if key(cell) in kept}
    try:
        with Network({"east": LinkShape(1e6, 0.01)}):  # now, not after hours without a link
            pass
        for cell in planned:
            chosen = fnmatchcase(cell.link, arguments.link) and fnmatchcase(cell.method, arguments.method)
            if cell in results or not chosen:
                continue
            print(cell.name, file=sys.stderr, flush=True)
            results[cell] = {**run(cell), "commit": current_commit()}
            append_entry(arguments.cache, {"key": key(cell), "cell": asdict(cell), "result": results[cell]})
    except NoNetworkError as error:
        sys.exit(str(error))
    write_report(arguments.json, "wan", ratios(results), figures(results))


if __name__ == "__main__":
    main()
