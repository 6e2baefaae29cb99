"""Benchmark `hetero`: learners at 1, 0.82, 0.5 and 0.25 of full speed, against learners of equal speed.

Real training of a small model in virtual time, as in `quality`, with the rates that were chosen there. Run it with

    python benchmarks/hetero.py --json benchmarks/results/hetero.json

Each variant trains the same number of tokens. What a learner keeps of its own speed is the share of its time in which
it makes inner steps; a loss is compared seed by seed with that of learners of equal speed. Nothing here depends on what
else the machine does.
"""

import argparse
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from quality_runs import Setting, run
from quality_variants import UNEVEN_SPEEDS, VARIANTS, Rates
from report import write_report

EVEN = "decoupled"
UNEVEN = ("uneven", "uneven_no_grace", "uneven_all", "uneven_lock_step")
RATES = {"A": Rates(5.7e-3, effective=1.0, momentum=0.0), "B": Rates(4e-3, effective=1.0, momentum=0.5)}
"""Chosen by `quality` for decoupled training, by workload."""


def main() -> int:
    """Run all and report."""
    arguments = _parse()
    settings = [
        Setting(variant, workload, arguments.steps, seed, RATES[workload])
        for workload, variant, seed in product(RATES, (EVEN, *UNEVEN), range(arguments.seeds))
    ]
    with ProcessPoolExecutor(arguments.workers) as pool:
        results = dict(zip(settings, pool.map(run, settings), strict=True))
    rows = [_row(workload, variant, results) for workload, variant in product(RATES, (EVEN, *UNEVEN))]
    ratios = {f"{row['workload']}_{row['variant']}_loss": row["loss_ratio"] for row in rows if row["variant"] != EVEN}
    ratios |= {f"{row['workload']}_{row['variant']}_speed_kept": row["least_speed_kept"] for row in rows}
    against = {
        name: (
            "evaluation loss with learners of equal speed at equal trained tokens, mean over seeds in pairs"
            if name.endswith("loss")
            else "the learner's own speed, of the learner that keeps least, mean over seeds"
        )
        for name in ratios
    }
    figures = {"speeds": list(UNEVEN_SPEEDS), "steps_of_each_if_even": arguments.steps, "variants": rows}
    write_report(arguments.json, benchmark="hetero", ratios=ratios, figures=figures, against=against)
    return 0


def _row(workload: str, variant: str, results: dict[Setting, dict[str, Any]]) -> dict[str, Any]:
    def of(name: str) -> list[dict[str, Any]]:
        return [found for setting, found in results.items() if (setting.workload, setting.variant) == (workload, name)]

    pairs = list(zip(of(variant), of(EVEN), strict=True))
    ratios = [one["loss"] / even["loss"] for one, even in pairs]
    kept = [statistics.mean(shares) for shares in zip(*(one["goodput"] for one, _ in pairs), strict=True)]
    return {
        "workload": workload,
        "variant": variant,
        "label": VARIANTS[variant].label,
        "loss": statistics.mean(one["loss"] for one, _ in pairs),
        "loss_ratio": statistics.mean(ratios),
        "loss_ratio_spread": statistics.stdev(ratios) if len(ratios) > 1 else 0.0,
        "least_speed_kept": min(kept),
        "speeds_kept": kept,
        "merged_share": statistics.mean(one["merged"] for one, _ in pairs),
        "members_per_merge": statistics.mean(one["members_per_merge"] for one, _ in pairs),
        "virtual_seconds": statistics.mean(one["virtual_seconds"] for one, _ in pairs),
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speed and loss of learners that differ in speed.")
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--steps", type=int, default=1600, help="inner steps of each learner at equal speed")
    parser.add_argument("--seeds", type=int, default=3, help="seeds, from 0")
    parser.add_argument("--workers", type=int, default=2, help="processes, one torch thread each (default 2)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
