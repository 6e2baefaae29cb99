"""The inner learning rate: it rises with the learner's own steps and falls with the job's progress.

The rise is the learner's own because its optimizer's moments are: a learner that starts without them must warm up,
whenever it joins. The fall is the job's, so that learners of different speed, and those that come late, end together.
"""

import math

from diloco.spec.training import InnerOptimizer


def learning_rate(options: InnerOptimizer, optimizer_steps: int, progress: float) -> float:
    """Learning rate of the next step.

    ``optimizer_steps``: steps the optimizer has made. ``progress``: merged tokens over the budget; taken as 0 to 1.
    """
    warm = min(1.0, (optimizer_steps + 1) / options.warmup_steps) if options.warmup_steps else 1.0
    if options.decay == "Constant":
        return options.learning_rate * warm
    done = min(1.0, max(0.0, progress))
    cosine = 0.5 * (1.0 + math.cos(math.pi * done))
    return options.learning_rate * warm * (options.final_fraction + (1.0 - options.final_fraction) * cosine)
