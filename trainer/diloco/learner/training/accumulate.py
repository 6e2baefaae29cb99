"""Gradients of a batch in parts (micro batches), so that only a part's activations are in memory at once."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

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
    expected: float,
    share: Share = WHOLE,
) -> tuple[Tensor, Tensor]:
    """Set gradients to those of the sum of all processes' losses over ``expected``.

    Returns the sum of this process's losses and their count. ``loss``: both, of a part. ``expected``: about the count
    in all processes; it only has to be the same in each, as the true one is known after the passes.
    """
    scale = share.divides_by / expected
    losses: list[Tensor] = []
    counts: list[Tensor] = []
    for number, part in enumerate(parts, 1):
        share.begin_part(last=number == len(parts))
        summed, count = loss(part)
        losses.append(summed.detach().float())
        # Without a copy from the host, for which it would wait, unless the task has made one there.
        made = count.detach() if isinstance(count, Tensor) else torch.full_like(losses[0], count)
        counts.append(made.to(losses[0].device, torch.float32, non_blocking=True))
        (summed * scale).backward()  # type: ignore[no-untyped-call]  # torch's own
    share.end_parts()
    return sum(losses[1:], losses[0]), sum(counts[1:], counts[0])
