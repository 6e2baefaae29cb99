"""The forward and the backward pass of an inner step."""

import torch
from torch import Tensor, nn

from diloco.learner.training.accumulate import Batch, accumulate, parts_of
from diloco.learner.training.cross_entropy import cross_entropy
from diloco.model.logits import logits_of
from diloco.spec.training import TrainingSpec


def backpropagate(module: nn.Module, inputs: Tensor, targets: Tensor, training: TrainingSpec) -> Tensor:
    """Set the parameters' gradients to those of a batch's mean loss; returns it, nats per token, on its device.

    ``inputs`` and ``targets``: token ids of shape (batch, sequence). The parameters have no gradients before.
    """

    def loss(part: Batch) -> tuple[Tensor, int]:
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=training.precision == "BF16"):
            logits = logits_of(module, part["inputs"])
        return cross_entropy(logits, part["targets"]), part["targets"].numel()

    parts = parts_of({"inputs": inputs, "targets": targets}, training.micro_batch_size)
    return accumulate(loss, parts, module.parameters())[0]
