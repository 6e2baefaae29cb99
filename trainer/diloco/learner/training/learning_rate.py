"""The inner learning rate: it rises with the learner's own steps and falls with the job's progress.

The rise is the learner's own because its optimizer's moments are: a learner that starts without them must warm up,
whenever it joins. The fall is the job's, so that learners of different speed, and those that come late, end together.
"""

import math
from collections.abc import Mapping

from diloco.spec.training import InnerOptimizer, OptimizerKind

Rates = Mapping[OptimizerKind, float]
"""Learning rates of one step: AdamW's, and Muon's where there is a Muon."""


def learning_rates(options: InnerOptimizer, optimizer_steps: int, progress: float) -> Rates:
    """Learning rates of the next step: peaks of their own, one rise and one fall.

    ``optimizer_steps``: steps the optimizer has made. ``progress``: merged tokens over the budget; taken as 0 to 1.
    """
    warm = min(1.0, (optimizer_steps + 1) / options.warmup_steps) if options.warmup_steps else 1.0
    share = warm * _fall(options, progress)
    rates: dict[OptimizerKind, float] = {"AdamW": options.learning_rate * share}
    if (muon := options.muon_options) is not None:
        rates["Muon"] = muon.learning_rate * share
    return rates


def _fall(options: InnerOptimizer, progress: float) -> float:
    """Share of the peak that the job's progress leaves."""
    if options.decay == "Constant":
        return 1.0
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(1.0, max(0.0, progress))))
    return options.final_fraction + (1.0 - options.final_fraction) * cosine
