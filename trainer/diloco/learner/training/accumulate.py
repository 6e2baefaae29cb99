"""Gradients of a batch in parts (micro batches), so that only a part's activations are in memory at once."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from diloco.learner.training.share import WHOLE, Share

Batch = Mapping[str, Tensor]
"""Tensors by name; the first dimension of each is the examples."""


def parts_of(batch: Batch, most: int | None) -> list[Batch]:
    """The batch in parts of ``most`` examples, the last one of fewer; None: the whole."""
    if most is None:
        return [batch]
    count = len(next(iter(batch.values())))
    return [{name: one[first : first + most] for name, one in batch.items()} for first in range(0, count, most)]


def accumulate(
    loss: Callable[[Batch], tuple[Tensor, Tensor | float]],
    parts: Sequence[Batch],
    parameters: Sequence[nn.Parameter],
    share: Share = WHOLE,
) -> tuple[Tensor, Tensor]:
    """Set the parameters' gradients to those of the mean loss of all parts; returns the mean and its count.

    ``loss``: the sum of a part's losses, and what the sum counts. Every count has the same weight, whatever its part.
    """
    losses: list[Tensor] = []
    counts: list[Tensor] = []
    alone = len(parts) == 1
    for part in parts:
        summed, count = loss(part)
        losses.append(summed.detach())
        counts.append(torch.as_tensor(count, dtype=torch.float32, device=summed.device))
        if alone:
            counts[0] = share.summed(counts[0])
            summed = summed * share.ranks / counts[0]
        summed.backward()  # type: ignore[no-untyped-call]  # torch's own
    share.average(parameters)
    counted = counts[0] if alone else share.summed(sum(counts[1:], counts[0]))
    if not alone:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.div_(counted / share.ranks)
    return share.summed(sum(losses[1:], losses[0])) / counted, counted
