"""What the results of the benchmark `quality` say: rows, paired differences, searches, as plain JSON.

`scripts/generate_quality.py` makes the tables of quality.md of it, so it holds every figure that they show.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from diloco.core.sizes import BLOCK, downlink_encoding, encoding_of
from diloco.spec.sync import SyncSpec
from support.quality.experiments import EXPERIMENTS, Experiment
from support.quality.plan import Choices, Results, tried
from support.quality.runs import Setting
from support.quality.variants import (
    AGAINST,
    CHOICE_SEED,
    FRAGMENTS,
    MEAN_SHARE,
    OFFERED,
    VARIANTS,
    WORKLOADS,
    Rates,
    Stage,
)

Cell = tuple[str, int, str]
"""Workload, steps, variant."""
Runs = Mapping[Setting, Mapping[str, Any]]
"""The runs of a cell, by seed."""
BEST = "data_parallel_muon"
"""What recommendations are held against."""
LEAST_SEEDS = 2
"""A recommendation rests on no fewer."""
EARLIER = "69f16f16"
"""The commit of runs that were made before the rounding of training changed."""

_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Two-sided 95 % quantiles of Student's t, by degrees of freedom from 1."""


def figures(stages: Sequence[Stage], results: Results) -> dict[str, Any]:
    """All measurements."""
    choices = Choices(stages, results)
    cells = list(dict.fromkeys((s.workload, s.steps, variant) for s in stages for variant in s.variants))
    runs = {cell: found for cell in cells if (found := _runs(results, *cell, choices))}
    return {
        "workloads": {name: asdict(load) | {"step_tokens": load.step_tokens} for name, load in WORKLOADS.items()},
        "runs": len(results),
        "earlier_runs": _earlier(results.values()),
        "cpu_seconds": round(sum(result["cpu_seconds"] for result in results.values())),
        "rows": [_row(cell, found) for cell, found in runs.items()],
        "differences": [
            _difference(cell, other, runs[cell], runs[beside])
            for cell in runs
            for other in AGAINST.get(cell[2], ())
            if (beside := (*cell[:2], other)) in runs
        ],
        "searches": list(_searches(cells, results, choices)),
        "recommendations": list(_recommendations(runs)),
        "experiments": [_experiment(name, one, results) for name, one in EXPERIMENTS.items()],
    }


def _earlier(runs: Iterable[Mapping[str, Any]]) -> int:
    """How many were made by the code before its rounding changed."""
    return sum(run["commit"] == EARLIER for run in runs)


def _runs(results: Results, workload: str, steps: int, variant: str, choices: Choices) -> Runs:
    """The runs of one cell of a table, by seed, at the rates that were finally chosen."""
    rates, _ = choices.rates(workload, steps, variant)
    of_mean = VARIANTS[variant].mean_of
    wanted = (workload, steps, of_mean or variant, rates)
    found = {
        setting: result if of_mean is None else {**result, "loss": result["loss_of_means"][f"{MEAN_SHARE:g}"]}
        for setting, result in results.items()
        if (setting.workload, setting.steps, setting.variant, setting.rates) == wanted
        and setting.seed != CHOICE_SEED
        and (of_mean is None or f"{MEAN_SHARE:g}" in result.get("loss_of_means", {}))
    }
    return dict(sorted(found.items(), key=lambda one: one[0].seed))


def _plain(rates: Rates) -> dict[str, float]:
    """What there is of them, and the outer learning rate as the manifest has it."""
    whole = asdict(rates) | {"outer_learning_rate": rates.outer_learning_rate}
    return {part: value for part, value in whole.items() if value is not None}


def _row(cell: Cell, runs: Runs) -> dict[str, Any]:
    first = next(iter(runs))
    losses = [run["loss"] for run in runs.values()]

    def mean(name: str) -> float | None:
        values = [run[name] for run in runs.values() if name in run]
        return statistics.mean(values) if values else None

    merges = mean("merges")
    return {
        **_named(cell),
        "label": VARIANTS[cell[2]].label,
        "rates": _plain(first.rates),
        "seeds": [setting.seed for setting in runs],
        "earlier_seeds": _earlier(runs.values()),
        "losses": [round(loss, 5) for loss in losses],
        "loss": statistics.mean(losses),
        "sd": statistics.stdev(losses) if len(losses) > 1 else None,
        "trained_tokens": mean("trained_tokens"),
        "merged_tokens": mean("merged_tokens"),
        "inner_steps": statistics.mean(statistics.mean(run["learner_steps"]) for run in runs.values()),
        "merges_a_fragment": None if merges is None else merges / FRAGMENTS,
        "pushed_bytes": mean("pushed_bytes"),
        "virtual_seconds": mean("virtual_seconds"),
    }


def _named(cell: Cell) -> dict[str, Any]:
    return dict(zip(("workload", "steps", "variant"), cell, strict=True))


def _difference(cell: Cell, other: str, runs: Runs, beside: Runs) -> dict[str, Any]:
    """How much higher the loss is, in percent, seed by seed."""
    theirs = {setting.seed: run["loss"] for setting, run in beside.items()}
    pairs = {
        setting.seed: 100 * (run["loss"] / theirs[setting.seed] - 1)
        for setting, run in runs.items()
        if setting.seed in theirs
    }
    return {
        **_named(cell),
        "against": other,
        "percent_by_seed": {str(seed): round(percent, 3) for seed, percent in pairs.items()},
        "percent": statistics.mean(pairs.values()) if pairs else None,
        "half_width": half_width(list(pairs.values())),
    }


def _recommendations(runs: Mapping[Cell, Runs]) -> Iterator[dict[str, Any]]:
    """The rows of decoupled training without faults, for `diloco plan`."""
    for (workload, steps, variant), found in runs.items():
        what, beside = VARIANTS[variant], runs.get((workload, steps, BEST))
        if workload not in ("A", "B") or variant not in OFFERED or not beside:
            continue
        if variant == "by_default" and (workload, steps, "decoupled") in runs:
            continue
        rates = next(iter(found)).rates
        difference = _difference((workload, steps, variant), BEST, found, beside)
        if len(difference["percent_by_seed"]) < LEAST_SEEDS:
            continue
        trained = sum(run["trained_tokens"] for run in found.values())
        sync = SyncSpec.model_validate(what.sync)
        yield {
            "steps": steps,
            "setting": workload,
            "optimizer": what.optimizer,
            "interval": sync.interval,
            "compression": sync.compression,
            "downlink": sync.downlink,
            "outer_learning_rate": rates.outer_learning_rate,
            "outer_momentum": rates.momentum,
            "loss_percent": round(difference["percent"], 1),
            "seeds": len(difference["percent_by_seed"]),
            "bytes_ratio": round(_bytes(sync) / _bytes(SyncSpec()), 2),
            "merged_share": round(sum(run["merged_tokens"] for run in found.values()) / trained, 2),
        }


def _bytes(sync: SyncSpec) -> float:
    """Of a parameter in an inner step, both ways, of a large fragment."""
    both = (encoding_of(sync.compression, sync.density), downlink_encoding(sync.downlink, sync.density))
    return sum(encoding.payload_bytes(BLOCK) for encoding in both) / BLOCK / sync.interval


def half_width(values: Sequence[float]) -> float | None:
    """Of the 95 % confidence interval of the mean, by Student's t; None for fewer than two values."""
    if not 2 <= len(values) <= len(_STUDENT) + 1:
        return None
    return _STUDENT[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))


def _searches(cells: Sequence[Cell], results: Results, choices: Choices) -> Iterator[dict[str, Any]]:
    for workload, steps, variant in dict.fromkeys((*cell[:2], VARIANTS[cell[2]].rates_of or cell[2]) for cell in cells):
        losses = tried(results, workload, steps, variant)
        chosen, _ = choices.rates(workload, steps, variant)
        if losses:
            yield {
                **_named((workload, steps, variant)),
                "label": VARIANTS[variant].label,
                "points": [{**_plain(rates), "loss": round(loss, 5)} for rates, loss in losses.items()],
                "chosen": None if chosen is None else _plain(chosen),
                "loss": None if chosen is None else losses.get(chosen),
            }


def _experiment(name: str, experiment: Experiment, results: Results) -> dict[str, Any]:
    """The base and the best of what was tried, and the points themselves."""
    points = [
        _point(setting, results[setting]) for setting in (experiment.base, *experiment.tried) if setting in results
    ]
    base = points[0] if experiment.base in results else None
    tried_ones = points[1:] if experiment.tried or base is None else _means(base)
    best = min(tried_ones, key=lambda point: point["loss"], default=None)
    return {
        "name": name,
        "title": experiment.title,
        "plan": experiment.plan,
        "base": base,
        "best": best,
        "percent": None if base is None or best is None else 100 * (best["loss"] / base["loss"] - 1),
        "gate": experiment.gate,
        "verdict": experiment.verdict,
        "runs": len(points),
        "points": points,
    }


def _means(point: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {**point, "label": f"mean of the last {float(share):.0%}", "loss": loss}
        for share, loss in point["loss_of_means"].items()
    ]


def _point(setting: Setting, result: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **_named((setting.workload, setting.steps, setting.variant)),
        "label": VARIANTS[setting.variant].label,
        "rates": _plain(setting.rates),
        "loss": result["loss"],
        "loss_of_means": result.get("loss_of_means", {}),
    }
