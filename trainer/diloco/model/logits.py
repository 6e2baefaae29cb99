"""Calls a language model for logits, and computes their cross-entropy in little memory.

Of the logits there is never a whole copy in f32. Beside them only their gradient is whole, in their own type. It is
made in the forward pass, chunk by chunk.
"""

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional


def logits_of(module: nn.Module, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
    """``module``'s logits of token ids (batch, sequence), as it returns them: their type and shape are not checked.

    A module returns logits, or an object that has them, as Hugging Face's models do.

    ``positions``: int64, in the shape of ``tokens``; each document begins with 0. None: each row is one document.
    """
    made = module(tokens) if positions is None else module(tokens, position_ids=positions)
    logits: Tensor = getattr(made, "logits", made)
    return logits


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
        rows, gradient = max(1, _CHUNK_ELEMENTS // logits.shape[1]), logits.requires_grad
        if len(logits) <= rows:
            total, of_whole = _of_chunk(logits, targets, masked=masked, gradient=gradient)
            ctx.gradient = None if of_whole is None else of_whole.to(logits.dtype)
            return total
        ctx.gradient = torch.empty_like(logits) if gradient else None
        total = torch.zeros((), device=logits.device)
        for first in range(0, len(logits), rows):
            part = slice(first, first + rows)
            summed, of_part = _of_chunk(logits[part], targets[part], masked=masked, gradient=gradient)
            total += summed
            if of_part is not None:
                ctx.gradient[part] = of_part
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:
        gradient, ctx.gradient = ctx.gradient, None  # in place, so only once
        return gradient.mul_(outer), None, None


def _of_chunk(logits: Tensor, ids: Tensor, *, masked: bool, gradient: bool) -> tuple[Tensor, Tensor | None]:
    """The summed cross-entropy of some positions, and its gradient by the logits in f32, if it is asked for."""
    scores = functional.log_softmax(logits, -1, dtype=torch.float32)
    total = functional.nll_loss(scores, ids, reduction="sum")
    if not gradient:
        return total, None
    column = (ids.clamp(min=0) if masked else ids)[:, None]
    made = scores.exp_().scatter_add_(1, column, scores.new_full((len(ids), 1), -1.0))
    if masked:
        made.mul_((ids != NOT_COUNTED)[:, None])
    return total, made
