"""The mean of a fragment's last versions, which becomes the final model (LAWA, arXiv 2209.14981)."""

import torch
from torch import Tensor

from diloco.core.buffers import recycled


def running_mean(mean: Tensor | None, values: Tensor, count: int) -> Tensor | None:
    """The mean of ``count`` versions, of which ``values`` is the latest and ``mean`` that of the others.

    None if ``count`` is 0. All are f32, flat, of one shape, and none is written to. Each operation rounds once, so that
    the result does not depend on the number of threads.
    """
    if count <= 1:
        return values if count else None
    assert mean is not None, "the versions before are in no mean"
    made = recycled(values.numel(), torch.float32)
    return torch.sub(values, mean, out=made).mul_(1 / count).add_(mean)
