"""Gradients of a batch in parts (micro batches), so that only a part's activations are in memory at once."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

Batch = Mapping[str, Tensor]
"""Tensors by name; the first dimension of each is the examples."""


def parts_of(batch: Batch, most: int | None) -> list[Batch]:
    """The batch in parts of ``most`` examples, the last one of fewer; None: the whole."""
    if most is None:
        return [batch]
    count = len(next(iter(batch.values())))
    return [{name: one[first : first + most] for name, one in batch.items()} for first in range(0, count, most)]


def accumulate(
    loss: Callable[[Batch], tuple[Tensor, Tensor | float]], parts: Sequence[Batch], parameters: Iterable[nn.Parameter]
) -> tuple[Tensor, Tensor]:
    """Set the parameters' gradients to those of the mean loss of all parts; returns the mean and its count.

    ``loss``: the sum of a part's losses, and what the sum counts. Every count has the same weight, whatever its part.
    """
    total, counted = torch.zeros(()), torch.zeros(())
    for part in parts:
        summed, count = loss(part)
        (summed / count if len(parts) == 1 else summed).backward()  # type: ignore[no-untyped-call]  # torch's own
        total = total.to(summed.device) + summed.detach()
        counted = counted.to(summed.device) + count
    if len(parts) > 1:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.div_(counted)
    return total / counted, counted.float()
