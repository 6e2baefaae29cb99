"""Benchmark `wan`: one job over links between regions, against training that waits for the links.

Network namespaces, one region and learner each, with rate and delay in the packets. The same model, tokens and seeds
for (a) one process, (b) synchronous data-parallel training over gloo, (c) blocking DiLoCo: whole-model rounds for which
everybody waits, (d) this project with f32 and with Int8 on the way back. Run it as root with

    python benchmarks/wan.py --json benchmarks/results/wan.json --cache benchmarks/results/wan-cells.jsonl

Every finished cell is kept in the cache, with the commit that it was measured at, so an interrupted benchmark goes on
where it was. The report has whatever has been run.
"""

import argparse
import hashlib
import json
import sys
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from delay_line import NoNetworkError
from report import current_commit, write_report
from wan_cells import FULL, LINKS, METHODS, SMALL, Cell, Size, run
from wan_network import network
from wan_report import figures, ratios

Results = dict[Cell, dict[str, Any]]


def cells(size: Size) -> list[Cell]:
    """All cells; whole seeds first, so that an early report compares what was run alike."""
    return [Cell(link, method, seed, size) for seed in range(size.seeds) for link in LINKS for method in _methods(link)]


def _methods(link: str) -> list[str]:
    """One process uses no link, so it is run once."""
    return [method for method in METHODS if method != "alone" or link == "unlinked"]


def key(cell: Cell) -> str:
    """Digest of everything that the cell is, but for the code."""
    parts = [cell.manifest(), cell.method, LINKS[cell.link]]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def read_cache(path: Path | None) -> dict[str, dict[str, Any]]:
    """Results by key; of several the last."""
    if path is None or not path.exists():
        return {}
    found = {}
    for line in path.read_text().splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:  # torn by an interruption
            continue
        found[entry["key"]] = entry["result"]
    return found


def main() -> int:
    """Run what is not in the cache yet, then report."""
    arguments = _parse()
    planned = cells(SMALL if arguments.small else FULL)
    kept = read_cache(arguments.cache)
    results: Results = {cell: kept[key(cell)] for cell in planned if key(cell) in kept}
    chosen = [cell for cell in planned if _wanted(cell, arguments)]
    try:  # now, not after hours without a link
        with network(["east"], 1e6, 0.01):
            pass
    except NoNetworkError as error:
        print(error, file=sys.stderr)
        return 1
    for cell in chosen:
        if cell in results and not arguments.again:
            continue
        print(cell.name, file=sys.stderr, flush=True)
        try:
            result = run(cell)
        except NoNetworkError as error:
            print(error, file=sys.stderr)
            return 1
        results[cell] = {**result, "commit": current_commit()}
        if arguments.cache is not None:
            entry = {"key": key(cell), "cell": asdict(cell), "result": results[cell]}
            with arguments.cache.open("a") as file:
                file.write(json.dumps(entry) + "\n")
    found, against = ratios(results)
    write_report(arguments.json, benchmark="wan", ratios=found, figures=figures(results), against=against)
    return 0


def _wanted(cell: Cell, arguments: argparse.Namespace) -> bool:
    return fnmatchcase(cell.link, arguments.link) and fnmatchcase(cell.method, arguments.method)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Training over links between regions, against training that waits.")
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--cache", type=Path, help="JSON lines of finished cells; go on from it")
    parser.add_argument("--small", action="store_true", help="a short run of each cell, one seed")
    parser.add_argument("--link", default="*", help=f"run only these links ({', '.join(LINKS)}; a shell pattern)")
    parser.add_argument("--method", default="*", help=f"run only these methods ({', '.join(METHODS)}; a shell pattern)")
    parser.add_argument("--again", action="store_true", help="run the chosen cells although they are in the cache")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
