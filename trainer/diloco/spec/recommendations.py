"""The training settings that were measured for several budgets, from which `diloco plan` recommends.

Plain data and one pure function. The rows are those of decoupled training in quality.md, settings A and B; `make
quality` writes them from benchmarks/results/quality.json.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from diloco.spec.training import OptimizerType


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Training settings that were measured."""

    steps: int
    """Inner steps of a learner in the measured run."""
    setting: Literal["A", "B"]
    """A: a batch so large that data-parallel training has too few steps. B: one with which it has enough."""
    optimizer: OptimizerType
    interval: int
    """H."""
    compression: str
    """``sync.compression``."""
    downlink: str
    """``sync.downlink``."""
    outer_learning_rate: float
    outer_momentum: float
    loss_percent: float
    """Loss over that of data-parallel training with Muon on as many tokens, in percent; mean over seeds."""
    seeds: int
    bytes_ratio: float
    """Bytes of an inner step, both ways, over those of the defaults: H = 24, BF16 up and F32 down."""
    merged_share: float
    """Share of the trained work that was merged. If links let less be merged, the loss will be higher."""


MEASURED_PARAMETERS: Final = 100_000
"""Of the model that was measured, approximately."""
ALIKE_STEPS: Final = 4
"""A run of up to so many times the steps, or one over so many, is taken to be like a measured one (ours)."""
ALIKE_PARAMETERS: Final = 10
"""So is a model of up to so many times the parameters (ours)."""

# `make quality` writes from here
MEASURED: tuple[Recommendation, ...] = (
    Recommendation(400, "A", "Muon", 6, "BF16", "F32", 1.0, 0.0, 4.8, 5, 4.0, 0.82),
    Recommendation(400, "A", "Muon", 24, "BF16", "F32", 0.7, 0.3, 7.8, 5, 1.0, 0.93),
    Recommendation(400, "A", "AdamW", 24, "BF16", "F32", 1.0, 0.0, 21.1, 5, 1.0, 0.93),
    Recommendation(400, "A", "Muon", 6, "Int4", "Int8", 1.0, 0.0, 4.8, 5, 1.03, 0.82),
    Recommendation(400, "B", "Muon", 6, "BF16", "F32", 1.0, 0.0, 5.0, 5, 4.0, 0.82),
    Recommendation(400, "B", "Muon", 24, "BF16", "F32", 0.7, 0.3, 9.3, 5, 1.0, 0.93),
    Recommendation(400, "B", "AdamW", 24, "BF16", "F32", 0.5, 0.5, 20.1, 5, 1.0, 0.93),
    Recommendation(400, "A", "Muon", 12, "BF16", "F32", 1.0, 0.0, 6.1, 3, 2.0, 0.9),
    Recommendation(400, "B", "Muon", 6, "Int4", "Int8", 1.0, 0.0, 5.2, 3, 1.03, 0.82),
    Recommendation(400, "B", "Muon", 12, "BF16", "F32", 1.0, 0.0, 7.3, 3, 2.0, 0.9),
    Recommendation(400, "A", "Muon", 3, "BF16", "F32", 1.0, 0.0, 3.0, 3, 8.0, 0.65),
    Recommendation(6400, "B", "AdamW", 24, "BF16", "F32", 0.7, 0.9, 2.7, 3, 1.0, 0.96),
    Recommendation(1600, "B", "Muon", 6, "BF16", "F32", 1.0, 0.0, 1.2, 3, 4.0, 0.82),
    Recommendation(1600, "B", "Muon", 24, "BF16", "F32", 1.0, 0.0, 3.6, 3, 1.0, 0.95),
    Recommendation(1600, "B", "AdamW", 24, "BF16", "F32", 0.7, 0.6, 10.9, 3, 1.0, 0.95),
    Recommendation(1600, "B", "Muon", 6, "Int4", "Int8", 1.0, 0.0, 2.8, 5, 1.03, 0.83),
    Recommendation(1600, "A", "Muon", 6, "BF16", "F32", 1.0, 0.0, 2.2, 5, 4.0, 0.83),
    Recommendation(1600, "A", "Muon", 24, "BF16", "F32", 0.7, 0.3, 3.4, 5, 1.0, 0.95),
    Recommendation(1600, "A", "AdamW", 24, "BF16", "F32", 0.7, 0.6, 6.5, 3, 1.0, 0.95),
    Recommendation(1600, "A", "Muon", 6, "Int4", "Int8", 1.0, 0.0, 2.2, 5, 1.03, 0.83),
    Recommendation(6400, "B", "Muon", 6, "BF16", "F32", 1.0, 0.0, 2.0, 3, 4.0, 0.82),
    Recommendation(6400, "B", "Muon", 24, "BF16", "F32", 0.7, 0.3, 6.1, 2, 1.0, 0.96),
    Recommendation(6400, "A", "Muon", 6, "BF16", "F32", 1.0, 0.0, 2.3, 2, 4.0, 0.83),
    Recommendation(6400, "A", "Muon", 24, "BF16", "F32", 0.7, 0.3, 2.3, 2, 1.0, 0.96),
    Recommendation(6400, "A", "AdamW", 24, "BF16", "F32", 1.0, 0.0, 2.1, 2, 1.0, 0.96),
)
# to here


def outside(steps: int, parameters: int) -> str:
    """What sets such a run apart from all that were measured, as text; empty: nothing does."""
    budgets = [row.steps for row in MEASURED] or [steps]
    if not min(budgets) / ALIKE_STEPS <= steps <= max(budgets) * ALIKE_STEPS:
        return f"runs of about {steps} steps a learner (measured: {min(budgets)} to {max(budgets)})"
    if parameters > ALIKE_PARAMETERS * MEASURED_PARAMETERS:
        return f"models of {parameters / 1e6:.3g}M parameters (measured: {MEASURED_PARAMETERS / 1e6:g}M)"
    return ""


def ranked(
    steps: int,
    *,
    optimizers: Sequence[OptimizerType] = ("AdamW", "Muon"),
    setting: Literal["A", "B"] = "A",
) -> tuple[Recommendation, ...]:
    """The rows of the measured budget nearest to ``steps`` by ratio: the lowest loss first, then the fewest bytes.

    ``steps``: each learner's inner steps in the whole run. Source: quality.md, its tables of settings A and B.
    """
    known = [row for row in MEASURED if row.optimizer in optimizers and row.setting == setting]
    budgets = {row.steps for row in known}
    nearest = min(budgets, key=lambda budget: (abs(math.log(budget / max(1, steps))), budget), default=None)
    rows = [row for row in known if row.steps == nearest]
    return tuple(sorted(rows, key=lambda row: (row.loss_percent, row.bytes_ratio)))
