"""The experiments of `quality`: one question each, answered by runs on the seed that chooses.

benchmarks/experiments/ has what each was to show, written before its runs. Here is what is run, and what was concluded.
All of it is data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from support.quality.runs import Setting
from support.quality.variants import CHOICE_SEED, Rates


@dataclass(frozen=True, slots=True)
class Experiment:
    """A base and what is held against it."""

    title: str
    plan: str
    """Its file in benchmarks/experiments/."""
    base: Setting
    tried: tuple[Setting, ...]
    """None are: the means of the last models of the base."""
    gate: str
    """What had to be for a change."""
    verdict: str


def due_of(experiment: Experiment, results: Mapping[Setting, Any]) -> list[Setting]:
    """Its runs without a result."""
    return [setting for setting in (experiment.base, *experiment.tried) if setting not in results]


def _in(workload: str, variant: str, steps: int, *rates: Rates) -> tuple[Setting, ...]:
    return tuple(Setting(variant, workload, steps, CHOICE_SEED, one) for one in rates)


_in_b = partial(_in, "B")


def _adamw(inner: float, outer: float, momentum: float) -> Rates:
    """With the outer learning rate as in a manifest."""
    return Rates(inner, effective=round(outer / (1 - momentum), 9), momentum=momentum)


def _muon(inner: float, outer: float, momentum: float) -> Rates:
    """Beside AdamW's rate of data-parallel training."""
    return Rates(11.3e-3, inner, round(outer / (1 - momentum), 9), momentum)


def _changes(variant: str, rates: Rates, *changes: str) -> tuple[Setting, ...]:
    return tuple(setting for change in changes for setting in _in_b(f"{variant}_{change}", 1600, rates))


_DEFAULT = _adamw(2e-3, 0.7, 0.9)
_SEARCHED = _adamw(4e-3, 0.5, 0.5)
_JOINT = _adamw(4e-3, 0.7, 0.6)
_MUON = _muon(16e-3, 1.0, 0.0)
_PARALLEL, _PARALLEL_MUON = Rates(8e-3), Rates(11.3e-3, 16e-3)

_EXPERIMENTS: Final[dict[str, Experiment]] = {
    "outer_6400": Experiment(
        "Outer optimizer, 266 merges",
        "outer_optimizer.md",
        _in_b("decoupled", 6400, _DEFAULT)[0],
        _in_b("decoupled", 6400, _JOINT, _adamw(2e-3, 0.7, 0.8)),
        "0.3 % below the base",
        "missed: (0.7, 0.9) stays",
    ),
    "outer_1600": Experiment(
        "Outer optimizer, 67 merges",
        "outer_optimizer.md",
        _in_b("decoupled", 1600, _adamw(2e-3, 1.0, 0.0))[0],
        _in_b("decoupled", 1600, *(_adamw(2e-3, *outer) for outer in ((0.7, 0.6), (0.7, 0.8), (0.7, 0.9)))),
        "0.7 % below the base, at either inner rate",
        "passed: `Auto` has (0.7, 0.6)",
    ),
    "outer_1600_fast": Experiment(
        "The same at twice the inner rate",
        "outer_optimizer.md",
        _in_b("decoupled", 1600, _adamw(4e-3, 1.0, 0.0))[0],
        _in_b("decoupled", 1600, _JOINT),
        "0.7 % below the base, at either inner rate",
        "passed",
    ),
    "outer_400": Experiment(
        "Outer optimizer, 17 merges",
        "outer_optimizer.md",
        _in_b("decoupled", 400, _adamw(2e-3, 1.0, 0.0))[0],
        _in_b("decoupled", 400, _adamw(2e-3, 0.7, 0.6)),
        "0.7 % below the base, at either inner rate",
        "missed at the other rate: (1, 0) stays",
    ),
    "outer_400_fast": Experiment(
        "The same at twice the inner rate",
        "outer_optimizer.md",
        _in_b("decoupled", 400, _adamw(4e-3, 1.0, 0.0))[0],
        _in_b("decoupled", 400, _JOINT),
        "0.7 % below the base, at either inner rate",
        "missed",
    ),
    "joint_adamw": Experiment(
        "Rates jointly, AdamW, H = 24",
        "joint_rates.md",
        _in_b("decoupled", 1600, _SEARCHED)[0],
        _in_b(
            "decoupled",
            1600,
            _adamw(2.8e-3, 0.5, 0.5),
            _adamw(5.7e-3, 0.5, 0.5),
            _JOINT,
            _adamw(4e-3, 0.7, 0.7),
            _adamw(5.7e-3, 0.7, 0.6),
            _adamw(2.8e-3, 0.7, 0.6),
        ),
        "0.35 % below the base",
        "passed, as on three other seeds: reported and recommended at 1600 steps",
    ),
    "joint_adamw_a": Experiment(
        "The same in setting A",
        "joint_rates.md",
        _in("A", "decoupled", 1600, _adamw(5.7e-3, 1.0, 0.0))[0],
        _in("A", "decoupled", 1600, *(_adamw(rate, 0.7, 0.6) for rate in (4e-3, 5.7e-3))),
        "0.35 % below the base",
        "passed: reported and recommended at 1600 steps",
    ),
    "joint_muon_h6": Experiment(
        "Rates jointly, Muon, H = 6",
        "joint_rates.md",
        _in_b("muon_h6", 1600, _MUON)[0],
        _in_b("muon_h6", 1600, _muon(11.3e-3, 1.0, 0.0)),
        "0.35 % below the base",
        "passed, as on three other seeds: reported and recommended at 1600 steps",
    ),
    "joint_parallel_muon": Experiment(
        "The same, data-parallel Muon",
        "joint_rates.md",
        _in_b("data_parallel_muon", 1600, _PARALLEL_MUON)[0],
        _in_b("data_parallel_muon", 1600, Rates(11.3e-3, 11.3e-3)),
        "the best is reported",
        "0.016 stays",
    ),
    "merges": Experiment(
        "Mean; RDA with (0.7, 0)",
        "schedules.md",
        _in_b("decoupled", 1600, _JOINT)[0],
        (*_changes("decoupled", _JOINT, "mean"), *_in_b("decoupled", 1600, _adamw(4e-3, 0.7, 0.0))),
        "0.7 % below the base",
        "missed by far: RDA with (0.7, 0.6) stays",
    ),
    "schedule_adamw": Experiment(
        "Warm-up, end of the cosine; AdamW, H = 24",
        "schedules.md",
        _in_b("decoupled", 1600, _JOINT)[0],
        _changes("decoupled", _JOINT, "to_zero", "to_third", "warm"),
        "0.7 % below the base, no loss in data-parallel training",
        "missed",
    ),
    "schedule_parallel": Experiment(
        "The same, data-parallel AdamW",
        "schedules.md",
        _in_b("data_parallel", 1600, _PARALLEL)[0],
        _changes("data_parallel", _PARALLEL, "to_zero", "to_third"),
        "none",
        "stays",
    ),
    "momentum_muon_h6": Experiment(
        "Muon's momentum, H = 6",
        "schedules.md",
        _in_b("muon_h6", 1600, _muon(11.3e-3, 1.0, 0.0))[0],
        _in_b("muon_h6_momentum_9", 1600, _muon(11.3e-3, 1.0, 0.0)),
        "0.7 % below the base, no loss in data-parallel training",
        "missed",
    ),
    "muon_h6_400": Experiment(
        "A lower rate in short runs, Muon, H = 6",
        "joint_rates.md",
        _in_b("muon_h6", 400, _muon(22.6e-3, 1.0, 0.0))[0],
        _in_b("muon_h6", 400, _MUON, _muon(11.3e-3, 1.0, 0.0)),
        "0.7 % below the base",
        "missed",
    ),
    "fragments": Experiment(
        "Fragments",
        "what_the_gap_is.md",
        _in_b("decoupled", 1600, _JOINT)[0],
        _changes("decoupled", _JOINT, "whole", "p4", "p8"),
        "0.7 % below the base",
        "missed: P = 24 stays",
    ),
    "mean_steps": Experiment(
        "The length of Mean's step",
        "what_the_gap_is.md",
        _in_b("decoupled", 1600, _JOINT)[0],
        _in_b(
            "decoupled_mean",
            1600,
            *(_adamw(4e-3, *outer) for outer in ((1.0, 0.6), (1.0, 0.8), (1.4, 0.6), (0.7, 0.6))),
        ),
        "0.7 % below the base",
        "missed by far: longer steps lose more",
    ),
    "primal_averaging": Experiment(
        "Averages inside",
        "primal_averaging.md",
        _in_b("decoupled", 1600, _JOINT)[0],
        tuple(
            _in_b(f"decoupled_{change}", 1600, rates)[0]
            for change, rates in (
                ("free", _adamw(4e-3, 1.0, 0.0)),
                ("free", _adamw(8e-3, 1.0, 0.0)),
                ("primal_24", _adamw(4e-3, 1.0, 0.0)),
                ("primal_24", _adamw(8e-3, 1.0, 0.0)),
                ("primal_96", _adamw(8e-3, 1.0, 0.0)),
                ("primal_24", _adamw(4e-3, 0.7, 0.6)),
                ("primal_24", _adamw(5.7e-3, 0.7, 0.6)),
                ("primal_24", _adamw(8e-3, 0.7, 0.6)),
                ("primal_24", _adamw(11.3e-3, 1.0, 0.0)),
            )
        ),
        "0.7 % below the base",
        "missed",
    ),
    "muon": Experiment(
        "Rates jointly, Muon, H = 24",
        "joint_rates.md",
        _in_b("muon", 1600, _muon(22.6e-3, 0.7, 0.3))[0],
        _in_b("muon", 1600, _muon(11.3e-3, 1.0, 0.0), _muon(11.3e-3, 0.7, 0.6), _muon(16e-3, 0.7, 0.6)),
        "0.35 % below the base",
        "passed: reported and recommended at 1600 steps",
    ),
    "muon_6400": Experiment(
        "The same after 6400 steps",
        "joint_rates.md",
        _in_b("muon", 6400, _muon(11.3e-3, 0.7, 0.6))[0],
        (*_in_b("muon", 6400, _muon(8e-3, 0.7, 0.6)), *_in_b("muon_h12", 6400, _muon(11.3e-3, 1.0, 0.0))),
        "0.35 % below the base",
        "passed on one seed; no other was run, so nothing is recommended from it",
    ),
    "learners": Experiment(
        "One and two learners with the same tokens in each step",
        "what_the_gap_is.md",
        _in_b("decoupled", 1600, _JOINT)[0],
        (
            *_in("A", "decoupled_one", 400, *(_adamw(8e-3, *outer) for outer in ((1.0, 0.0), (0.7, 0.6)))),
            *_in("batch 8", "decoupled_two", 800, *(_adamw(rate, 0.7, 0.6) for rate in (4e-3, 5.7e-3))),
        ),
        "none",
        "of the gap, 1 point comes without other learners",
    ),
    "changing_interval": Experiment(
        "H that grows or shrinks; Muon",
        "changing_interval.md",
        _in_b("muon_h12", 1600, _muon(11.3e-3, 1.0, 0.0))[0],
        _changes("muon", _muon(11.3e-3, 1.0, 0.0), "grows", "shrinks"),
        "0.7 % below the base",
        "missed by far: one interval is best",
    ),
    "beta2": Experiment(
        "AdamW's second moment",
        "what_the_gap_is.md",
        _in_b("decoupled", 1600, _JOINT)[0],
        _changes("decoupled", _JOINT, "beta_95"),
        "0.7 % below the base",
        "missed",
    ),
    "batches": Experiment(
        "The batch, at equal tokens",
        "what_the_gap_is.md",
        _in_b("decoupled", 1600, _JOINT)[0],
        (
            *_in("batch 2", "decoupled", 3200, *(_adamw(rate, 0.7, 0.6) for rate in (2e-3, 2.8e-3, 4e-3))),
            *_in("batch 2", "decoupled", 3200, _adamw(2e-3, 0.7, 0.8), _adamw(2.8e-3, 1.0, 0.0)),
            *_in("batch 1", "decoupled", 6400, *(_adamw(rate, 0.7, 0.8) for rate in (1.4e-3, 2e-3))),
            *_in("batch 8", "decoupled", 800, *(_adamw(rate, 0.7, 0.6) for rate in (4e-3, 5.7e-3))),
        ),
        "0.7 % below the base",
        "half the batch passed, with twice the bytes, as on three other seeds; data-parallel training gains less",
    ),
    "schedule_muon_h6": Experiment(
        "The same, Muon, H = 6",
        "schedules.md",
        _in_b("muon_h6", 1600, _MUON)[0],
        _changes("muon_h6", _MUON, "to_zero"),
        "0.7 % below the base, no loss in data-parallel training",
        "missed",
    ),
    "schedule_parallel_muon": Experiment(
        "The same, data-parallel Muon",
        "schedules.md",
        _in_b("data_parallel_muon", 1600, _PARALLEL_MUON)[0],
        _changes("data_parallel_muon", _PARALLEL_MUON, "to_zero"),
        "none",
        "stays",
    ),
}
EXPERIMENTS: Final = _EXPERIMENTS | {
    f"means_{name}": Experiment(
        f"The mean of the last models{where}",
        "mean_of_versions.md",
        base,
        (),
        "0.7 %, and 0.35 % more than in data-parallel training",
        verdict,
    )
    for name, where, base, verdict in (
        ("adamw", "", _in_b("decoupled", 1600, _JOINT)[0], "missed"),
        ("muon_h6", "", _in_b("muon_h6", 1600, _MUON)[0], "as much in data-parallel training: missed"),
        ("parallel_muon", "", _in_b("data_parallel_muon", 1600, _PARALLEL_MUON)[0], "held against it"),
        ("default", ", 6400 steps", Setting("by_default", "B", 6400, 0, _DEFAULT), "passed: `sync.averageLast`"),
        ("parallel", ", 6400 steps", Setting("data_parallel", "B", 6400, 0, _PARALLEL), "held against it"),
    )
}
"""By name, as `benchmarks/quality.py --experiment` takes it."""
