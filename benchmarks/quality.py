"""Benchmark `quality`: does decoupled training reach the same evaluation loss, token for token?

Real training of a small model in virtual time (`diloco.simulate`): engine, merges, codecs and inner steps are those of
a real run, only clocks and links are simulated. Run it with

    python benchmarks/quality.py --json benchmarks/results/quality.json --cache benchmarks/results/quality-runs.jsonl

Every finished run is kept in the cache, so an interrupted benchmark goes on where it was. Runs go by importance,
`--workload`, `--steps` and `--only` pick some of them, and the report has whatever has been run. `--experiment NAME`
runs an experiment of benchmarks/experiments/ in their place. `make quality` writes the tables of
docs/explanation/quality.md from the report.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from support.quality.experiments import EXPERIMENTS, due_of
from support.quality.figures import figures
from support.quality.plan import due
from support.quality.runner import Runner
from support.quality.variants import QUICK, STAGES, VARIANTS, Stage
from support.report import Ratio, command, save_report


def main() -> None:
    """Run what is not in the cache yet, then report."""
    parser = command(__doc__)
    parser.add_argument("--cache", type=Path, help="JSON lines of finished runs; an interrupted benchmark resumes")
    parser.add_argument("--workers", type=int, default=2, help="processes, one torch thread each (default 2)")
    parser.add_argument("--quick", action="store_true", help="a smoke test: a tiny budget, two seeds, no search")
    parser.add_argument("--workload", default="*", help="run only these settings (A, B, nano, ...; a shell pattern)")
    parser.add_argument("--steps", type=int, action="append", help="run only this budget; may be given again")
    parser.add_argument("--only", default="*", help="run only these variants (a shell pattern; 'none': report)")
    parser.add_argument("--experiment", choices=EXPERIMENTS, help="run only this experiment")
    arguments = parser.parse_args()
    planned = QUICK if arguments.quick else STAGES
    stages = [part for stage in planned if (part := _selected(stage, arguments)) is not None]
    runner = Runner(arguments.cache, arguments.workers)
    chosen = EXPERIMENTS.get(arguments.experiment)
    wanted = partial(due, stages, planned) if chosen is None else partial(due_of, chosen)
    try:
        runner.run(wanted, lambda: _write(arguments.json, planned, runner))
    finally:
        runner.close()
    _write(arguments.json, planned, runner)


def _write(path: Path | None, planned: Sequence[Stage], runner: Runner) -> None:
    """Write the results so far; after every run, so that an interruption leaves a complete file."""
    if path is None:
        return
    measured = figures(planned, runner.results)
    ratios = {
        "{workload}_{steps}_{variant}_over_{against}".format(**difference): Ratio(
            1 + difference["percent"] / 100,
            f"evaluation loss of {VARIANTS[difference['against']].label}, mean over seeds in pairs",
            less_is_better=True,
        )
        for difference in measured["differences"]
        if difference["percent"] is not None
    }
    save_report(path, "quality", ratios, measured)


def _selected(stage: Stage, arguments: argparse.Namespace) -> Stage | None:
    if not fnmatchcase(stage.workload, arguments.workload) or (arguments.steps and stage.steps not in arguments.steps):
        return None
    variants = tuple(variant for variant in stage.variants if fnmatchcase(variant, arguments.only))
    return dataclasses.replace(stage, variants=variants) if variants else None


if __name__ == "__main__":
    main()
