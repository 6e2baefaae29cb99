"""Calls a language model: one that returns logits, or an object that has them, as Hugging Face's models do."""

from torch import Tensor, nn


def logits_of(module: nn.Module, tokens: Tensor) -> Tensor:
    """``module``'s logits of token ids (batch, sequence), as it returns them: their type and shape are not checked."""
    made = module(tokens)
    logits: Tensor = getattr(made, "logits", made)
    return logits
