"""The forward and the backward pass of an inner step."""

from typing import Literal

import torch
from torch import Tensor, nn

from diloco.learner.training.evaluate import cross_entropy
from diloco.model.logits import logits_of


def backpropagate(module: nn.Module, inputs: Tensor, targets: Tensor, precision: Literal["F32", "BF16"]) -> Tensor:
    """Add the gradients of a batch's loss to the parameters'; returns the loss, nats per token, on its device.

    ``inputs`` and ``targets``: token ids of shape (batch, sequence).
    """
    with torch.autocast(inputs.device.type, torch.bfloat16, enabled=precision == "BF16"):
        logits = logits_of(module, inputs)
    loss = cross_entropy(logits, targets)
    loss.backward()  # type: ignore[no-untyped-call]  # torch's own
    return loss.detach()
