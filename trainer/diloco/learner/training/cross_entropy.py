"""Cross-entropy of a large vocabulary in little memory: of the logits there is never a whole copy in f32.

Beside the logits only their gradient is whole, in their own type. It is made in the forward pass, chunk by chunk.
"""

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

NOT_COUNTED: Final = -100
"""In the place of a target's id: torch's own mark."""
_CHUNK_ELEMENTS: Final = 2**24


def cross_entropy(logits: Tensor, targets: Tensor, *, masked: bool = False) -> Tensor:
    """Summed cross-entropy in nats of logits (batch, sequence, vocabulary) against ids (batch, sequence), in f32.

    ``masked``: positions whose id is ``NOT_COUNTED`` are left out.
    """
    total: Tensor = _CrossEntropy.apply(logits.flatten(0, 1), targets.flatten(), masked)
    return total


class _CrossEntropy(torch.autograd.Function):
    """Of logits (positions, vocabulary)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, masked: bool) -> Tensor:  # noqa: FBT001  # torch passes it so
        ctx.gradient = torch.empty_like(logits) if logits.requires_grad else None
        total = torch.zeros((), device=logits.device)
        rows = max(1, _CHUNK_ELEMENTS // logits.shape[1])
        for first in range(0, len(logits), rows):
            part, ids = logits[first : first + rows], targets[first : first + rows]
            scores = functional.log_softmax(part, -1, dtype=torch.float32)
            total += functional.nll_loss(scores, ids, reduction="sum")
            if ctx.gradient is not None:
                column, minus = ids.clamp(min=0)[:, None], scores.new_full((len(ids), 1), -1.0)
                of_part = scores.exp_().scatter_add_(1, column, minus)
                if masked:
                    of_part.mul_((ids != NOT_COUNTED)[:, None])
                ctx.gradient[first : first + rows] = of_part
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:
        gradient, ctx.gradient = ctx.gradient, None  # in place, so only once
        return gradient.mul_(outer), None, None
