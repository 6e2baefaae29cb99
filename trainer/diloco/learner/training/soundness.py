"""Whether a merged fragment can be trained on. Pure.

The syncer leaves out what would spoil a merge; a learner looks all the same before it overwrites its own parameters.
One that swapped in what is not finite, or so large that its products are not, would lose its training, end, and do so
again after every restart.
"""

from typing import Final

import torch
from torch import Tensor

LARGEST: Final = 2.0**40
"""Of a parameter, absolutely (ours). No training has such ones; the square of 2**64 is already no f32 any more, and a
sum over a wide layer overflows well before."""


def problem_with(values: Tensor) -> str | None:
    """Why ``values`` (f32, flat, on the host) cannot be trained on; None: they can. Reads them once."""
    if values.numel() == 0:
        return None
    least, greatest = (float(value) for value in torch.aminmax(values))
    if not (least >= -LARGEST and greatest <= LARGEST):  # false for NaN, which is in both where it is anywhere
        return f"its values go from {least:g} to {greatest:g}; {LARGEST:g} is the largest that can be trained"
    return None
