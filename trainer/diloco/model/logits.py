"""Calls a language model: one that returns logits, or an object that has them, as Hugging Face's models do."""

from torch import Tensor, nn


def logits_of(module: nn.Module, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
    """``module``'s logits of token ids (batch, sequence), as it returns them: their type and shape are not checked.

    ``positions``: int64, in the shape of ``tokens``; each document begins with 0. None: each row is one document.
    """
    made = module(tokens) if positions is None else module(tokens, position_ids=positions)
    logits: Tensor = getattr(made, "logits", made)
    return logits
