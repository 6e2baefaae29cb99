"""Benchmark `hetero`: learners at 1, 0.82, 0.5 and 0.25 of full speed, against learners of equal speed.

Real training of a small model in virtual time, as in `quality`, with the rates that were chosen there. Run it with

    python benchmarks/hetero.py --json benchmarks/results/hetero.json

Each variant trains the same number of tokens. What a learner keeps of its own speed is the share of its time in which
it makes inner steps; a loss is compared seed by seed with that of learners of equal speed. Nothing here depends on what
else the machine does.
"""

import statistics
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Any

from support.quality.runs import Setting, run
from support.quality.variants import UNEVEN_SPEEDS, VARIANTS, Rates
from support.report import Ratio, command, paired, write_report

EVEN = "decoupled"
UNEVEN = ("uneven", "uneven_no_grace", "uneven_all", "uneven_lock_step")
RATES = {"A": Rates(5.7e-3, effective=1.0, momentum=0.0), "B": Rates(4e-3, effective=1.0, momentum=0.5)}
"""Chosen by `quality` for decoupled training, by workload."""


def main() -> None:
    """Run all and report."""
    parser = command(__doc__)
    parser.add_argument("--steps", type=int, default=1600, help="inner steps of each learner at equal speed")
    parser.add_argument("--seeds", type=int, default=3, help="seeds, from 0")
    parser.add_argument("--workers", type=int, default=2, help="processes, one torch thread each (default 2)")
    arguments = parser.parse_args()
    settings = [
        Setting(variant, workload, arguments.steps, seed, RATES[workload])
        for workload, variant, seed in product(RATES, (EVEN, *UNEVEN), range(arguments.seeds))
    ]
    with ProcessPoolExecutor(arguments.workers) as pool:
        results = dict(zip(settings, pool.map(run, settings), strict=True))
    rows = [_row(workload, variant, results) for workload, variant in product(RATES, (EVEN, *UNEVEN))]
    loss = "evaluation loss with learners of equal speed at equal trained tokens, mean over seeds in pairs"
    speed = "the learner's own speed, of the learner that keeps least, mean over seeds"
    ratios = {f"{row['workload']}_{row['variant']}_speed_kept": Ratio(row["least_speed_kept"], speed) for row in rows}
    ratios |= {
        f"{row['workload']}_{row['variant']}_loss": Ratio(row["loss_ratio"], loss, less_is_better=True)
        for row in rows
        if row["variant"] != EVEN
    }
    figures = {"speeds": list(UNEVEN_SPEEDS), "steps_of_each_if_even": arguments.steps, "variants": rows}
    write_report(arguments.json, "hetero", ratios, figures)


def _row(workload: str, variant: str, results: dict[Setting, dict[str, Any]]) -> dict[str, Any]:
    def of(name: str) -> list[dict[str, Any]]:
        return [found for setting, found in results.items() if (setting.workload, setting.variant) == (workload, name)]

    own = of(variant)
    ratios = paired((one["loss"] for one in own), (even["loss"] for even in of(EVEN)))
    kept = [statistics.mean(shares) for shares in zip(*(one["goodput"] for one in own), strict=True)]
    return {
        "workload": workload,
        "variant": variant,
        "label": VARIANTS[variant].label,
        "loss": statistics.mean(one["loss"] for one in own),
        "loss_ratio": statistics.mean(ratios),
        "loss_ratio_spread": statistics.stdev(ratios) if len(ratios) > 1 else 0.0,
        "least_speed_kept": min(kept),
        "speeds_kept": kept,
        "merged_share": statistics.mean(one["merged"] for one in own),
        "members_per_merge": statistics.mean(one["members_per_merge"] for one in own),
        "virtual_seconds": statistics.mean(one["virtual_seconds"] for one in own),
    }


if __name__ == "__main__":
    main()
