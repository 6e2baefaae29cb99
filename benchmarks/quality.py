"""Benchmark `quality`: does decoupled training reach the same evaluation loss, token for token?

Real training of a small model in virtual time (`diloco.simulate`): engine, merges, codecs and inner steps are those of
a real run, only clocks and links are simulated. Run it with

    python benchmarks/quality.py --json benchmarks/results/quality.json --cache benchmarks/results/quality-runs.jsonl

Every finished run is kept in the cache, so an interrupted benchmark goes on where it was.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quality_runs import (
    BATCH_SEQUENCES,
    COMPARED_WITH,
    LEARNERS,
    SEQUENCE_TOKENS,
    VARIANTS,
    WORLDS,
    Setting,
    fingerprints,
    run,
)
from report import write_report

BUDGETS = (400, 1600)
"""Inner steps a learner; the larger is four times the smaller."""
SEEDS = (0, 1, 2)
CHOICE_SEED = 100
"""The outer optimizer is chosen on a seed that the table does not use."""
OUTER_CHOICES = ((1.0, 0.0), (0.9, 0.2), (0.7, 0.5), (0.4, 0.8), (0.7, 0.9))
"""(learning rate, momentum); the last one is DiLoCo's."""
CHOICE_VARIANT = "lock_step"
"""Chosen on lock-step: if that favors anything, it is what decoupled is held against."""
BASELINE = "decoupled"
ALONE_KINDS = ("alone", "data_parallel")

Results = dict[Setting, dict[str, Any]]


def main() -> int:
    """Run what is not in the cache yet, then report."""
    arguments = _parse()
    budgets = (24, 96) if arguments.quick else BUDGETS
    seeds = SEEDS[:1] if arguments.quick else SEEDS
    choices = OUTER_CHOICES[:2] if arguments.quick else OUTER_CHOICES
    runner = Runner(arguments.cache, arguments.workers)
    grid = [Setting(CHOICE_VARIANT, steps, CHOICE_SEED, *outer) for steps in budgets for outer in choices]
    # The baselines know no outer optimizer, so they need not wait for its choice.
    plain = [Setting(variant, steps, seed) for variant in ALONE_KINDS for steps in budgets for seed in seeds]
    results = runner.run([*grid, *plain])
    chosen = {
        steps: min(choices, key=lambda outer: results[Setting(CHOICE_VARIANT, steps, CHOICE_SEED, *outer)]["loss"])
        for steps in budgets
    }
    decoupled = [
        Setting(variant, steps, seed, *chosen[steps])
        for variant in VARIANTS
        if variant not in ALONE_KINDS
        for steps in budgets
        for seed in seeds
    ]
    results |= runner.run(decoupled)
    _report(arguments.json, results, chosen)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Evaluation loss of decoupled training against its relatives.")
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument(
        "--cache", type=Path, help="JSON lines of finished runs; an interrupted benchmark goes on from it"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes, one torch thread each (default 2)")
    parser.add_argument("--quick", action="store_true", help="a smoke test: tiny budgets, one seed")
    return parser.parse_args()


class Runner:
    """Carries out runs in worker processes and remembers results in a file."""

    def __init__(self, cache: Path | None, workers: int) -> None:
        self._cache = cache
        self._workers = workers
        self._known: dict[str, dict[str, Any]] = {}
        if cache is not None and cache.exists():
            for line in cache.read_text().splitlines():
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:  # torn by an interruption
                    continue
                self._known[entry["key"]] = entry["result"]

    def run(self, settings: Iterable[Setting]) -> Results:
        """Results of all settings, longest runs first."""
        # Spawned, not forked: torch's thread pool does not survive a fork.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self._workers, mp_context=context) as pool:
            # From these very workers: the code may have changed since an earlier call.
            marks = pool.submit(fingerprints).result()
            keys = {setting: setting.key(marks) for setting in settings}
            due = sorted((s for s in keys if keys[s] not in self._known), key=lambda s: -s.steps)
            running = {pool.submit(run, setting): setting for setting in due}
            for number, done in enumerate(as_completed(running), start=1):
                setting, result = running[done], done.result()
                self._keep(setting, keys[setting], result)
                print(f"[{number}/{len(due)}] {_name(setting)}: {result['loss']:.4f}", file=sys.stderr, flush=True)
        return {setting: self._known[key] for setting, key in keys.items()}

    def _keep(self, setting: Setting, key: str, result: dict[str, Any]) -> None:
        self._known[key] = result
        if self._cache is not None:
            self._cache.parent.mkdir(parents=True, exist_ok=True)
            entry = {"key": key, "setting": asdict(setting), "result": result}
            with self._cache.open("a") as file:
                file.write(json.dumps(entry) + "\n")


def _name(setting: Setting) -> str:
    outer = f"outer {setting.outer_learning_rate:g}/{setting.outer_momentum:g}"
    return f"{setting.variant}, {setting.steps} steps, seed {setting.seed}, {outer}"


def _report(path: Path | None, results: Results, chosen: dict[int, tuple[float, float]]) -> None:
    ratios: dict[str, float] = {}
    figures: dict[str, Any] = {
        "learners": LEARNERS,
        "tokens_per_inner_step_and_learner": BATCH_SEQUENCES * SEQUENCE_TOKENS,
        "chosen_outer_optimizer": {
            str(steps): {"learningRate": lr, "momentum": mu} for steps, (lr, mu) in chosen.items()
        },
        "worlds": WORLDS,
        "cpu_seconds": sum(result["cpu_seconds"] for result in results.values()),
    }
    for steps in chosen:
        figures[f"choice_{steps}_steps"] = [
            {"outer_learning_rate": s.outer_learning_rate, "momentum": s.outer_momentum, "loss": result["loss"]}
            for s, result in results.items()
            if s.seed == CHOICE_SEED and s.steps == steps
        ]
        rows = [_row(variant, steps, results) for variant in VARIANTS]
        figures[f"loss_{steps}_steps"] = rows
        ratios |= {f"{row['variant']}_{steps}": row["ratio"] for row in rows if row["variant"] != BASELINE}
    figures["asked"] = _asked(figures, sorted(chosen))
    against = {
        name: f"evaluation loss of {COMPARED_WITH.get(name.rsplit('_', 1)[0], BASELINE)}, same budget, mean over seeds"
        for name in ratios
    }
    write_report(path, benchmark="quality", ratios=ratios, figures=figures, against=against)


def _row(variant: str, steps: int, results: Results) -> dict[str, Any]:
    mine, base = (
        {
            s.seed: result
            for s, result in results.items()
            if (s.variant, s.steps) == (name, steps) and s.seed != CHOICE_SEED
        }
        for name in (variant, COMPARED_WITH.get(variant, BASELINE))
    )
    losses = [result["loss"] for result in mine.values()]
    pairs = [result["loss"] / base[seed]["loss"] - 1 for seed, result in mine.items()]
    first = next(iter(mine.values()))
    return {
        "variant": variant,
        "loss": statistics.mean(losses),
        "sd": statistics.stdev(losses) if len(losses) > 1 else None,
        "ratio": 1 + statistics.mean(pairs),
        "percent_by_seed": " ".join(f"{100 * pair:+.2f}" for pair in pairs),
        "trained_tokens": statistics.mean(result["trained_tokens"] for result in mine.values()),
        "merged_tokens": statistics.mean(result["merged_tokens"] for result in mine.values()),
        "merges": first.get("merges", ""),
        "members": first.get("members_per_merge", ""),
        "lagging": first.get("lagging", ""),
        "goodput": first.get("goodput", ""),
        "restarts": statistics.mean(result.get("restarts", 0) for result in mine.values()),
    }


def _asked(figures: dict[str, Any], budgets: list[int]) -> list[dict[str, Any]]:
    """The relations that are asked for, and whether they hold. All in percent of the loss."""
    rows = []
    gaps = []
    for steps in budgets:
        table = {row["variant"]: row for row in figures[f"loss_{steps}_steps"]}
        lock_step = 100 * (1 / table["lock_step"]["ratio"] - 1)
        faults = 100 * (table["faults"]["ratio"] - 1)
        alone = 100 * (table["alone"]["ratio"] - 1)
        gaps.append(100 * (1 / table["data_parallel"]["ratio"] - 1))
        rows += [
            _relation(f"decoupled over lock-step, {steps} steps", lock_step, "at most 0.5", holds=lock_step <= 0.5),
            _relation(f"with faults over decoupled, {steps} steps", faults, "at most 1", holds=faults <= 1.0),
            _relation(f"alone over decoupled, {steps} steps", alone, "clearly above 0", holds=alone >= 1.0),
        ]
    text = f"decoupled over data-parallel, {' then '.join(str(steps) for steps in budgets)} steps"
    rows.append(_relation(text, gaps[-1], f"below {gaps[0]:.2f}", holds=gaps[-1] < gaps[0]))
    return rows


def _relation(what: str, percent: float, asked: str, *, holds: bool) -> dict[str, Any]:
    return {"relation": what, "percent": percent, "asked": asked, "holds": holds}


if __name__ == "__main__":
    sys.exit(main())
