"""Benchmark `quality`: does decoupled training reach the same evaluation loss, token for token?

Real training of a small model in virtual time (`diloco.simulate`): engine, merges, codecs and inner steps are those of
a real run, only clocks and links are simulated. Run it with

    python benchmarks/quality.py --json benchmarks/results/quality.json --cache benchmarks/results/quality-runs.jsonl

Every finished run is kept in the cache, so an interrupted benchmark goes on where it was; what the code no longer
reproduces is run anew. Runs go by importance, `--workload`, `--steps` and `--only` pick some of them, and the report
has whatever has been run. `make quality` writes the tables of docs/quality.md from it.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from quality_plan import due
from quality_report import figures
from quality_runner import Runner
from quality_stages import QUICK, STAGES
from quality_variants import VARIANTS, Stage
from report import make_report, write_json


def main() -> int:
    """Run what is not in the cache yet, then report."""
    arguments = _parse()
    planned = QUICK if arguments.quick else STAGES
    stages = [part for stage in planned if (part := _selected(stage, arguments)) is not None]
    variants = {variant for stage in stages for variant in stage.variants}
    runner = Runner(arguments.cache, arguments.workers, variants | {_rates_of(variant) for variant in variants})
    try:
        runner.run(partial(due, stages, planned), lambda: _write(arguments.json, planned, runner))
    finally:
        runner.close()
    _write(arguments.json, planned, runner)
    return 0


def _write(path: Path | None, planned: Sequence[Stage], runner: Runner) -> None:
    """Write the results so far; after every run, so that an interruption leaves a complete file."""
    if path is None:
        return
    measured = figures(planned, runner.results, runner.fingerprints)
    found = [difference for difference in measured["differences"] if difference["percent"] is not None]
    ratios = {_name(difference): 1 + difference["percent"] / 100 for difference in found}
    against = {
        _name(difference): f"evaluation loss of {VARIANTS[difference['against']].label}, mean over seeds in pairs"
        for difference in found
    }
    write_json(path, make_report(benchmark="quality", ratios=ratios, figures=measured, against=against))


def _rates_of(variant: str) -> str:
    return VARIANTS[variant].rates_of or variant


def _name(difference: dict[str, object]) -> str:
    return "{workload}_{steps}_{variant}_over_{against}".format(**difference)


def _selected(stage: Stage, arguments: argparse.Namespace) -> Stage | None:
    if not fnmatchcase(stage.workload, arguments.workload) or (arguments.steps and stage.steps not in arguments.steps):
        return None
    variants = tuple(variant for variant in stage.variants if fnmatchcase(variant, arguments.only))
    return dataclasses.replace(stage, variants=variants) if variants else None


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Evaluation loss of decoupled training against its relatives.")
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument(
        "--cache", type=Path, help="JSON lines of finished runs; an interrupted benchmark goes on from it"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes, one torch thread each (default 2)")
    parser.add_argument("--quick", action="store_true", help="a smoke test: a tiny budget, two seeds, no search")
    parser.add_argument("--workload", default="*", help="run only these settings (A, B, nano, ...; a shell pattern)")
    parser.add_argument("--steps", type=int, action="append", help="run only this budget; may be given again")
    parser.add_argument("--only", default="*", help="run only these variants (a shell pattern; 'none': report)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
