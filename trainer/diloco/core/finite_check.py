"""Whether parameters can be trained on. Pure.

The syncer begins with no others, and leaves out what would spoil a merge; a learner checks again before it overwrites
its own parameters. If it swapped in values that are not finite, or so large that their products are not, it would
diverge and exit, again after every restart.
"""

from typing import Final

import torch
from torch import Tensor

LARGEST: Final = 2.0**40
"""Largest absolute value of a parameter (ours). No training reaches it; the square of 2**64 already exceeds f32, and a
sum over a wide layer overflows well before."""


def problem_with(values: Tensor) -> str | None:
    """Why ``values`` (f32, flat, on the host) cannot be trained on; None: they can. Reads them once."""
    if values.numel() == 0:
        return None
    least, greatest = (float(value) for value in torch.aminmax(values))
    if not (least >= -LARGEST and greatest <= LARGEST):  # false for NaN, as any NaN makes both NaN
        return f"its values go from {least:g} to {greatest:g}; {LARGEST:g} is the largest that can be trained"
    return None
