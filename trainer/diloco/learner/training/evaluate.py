"""The loss of a model on held-out tokens. Evaluating with other parameters does not change the model itself."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from diloco.learner.data import Batch
from diloco.learner.training.cross_entropy import cross_entropy


def mean_loss(
    module: nn.Module, batches: Iterable[Batch], device: torch.device, parameters: Mapping[str, Tensor] | None = None
) -> float:
    """Mean cross-entropy in nats per token, in f32 arithmetic whatever the training's precision.

    ``parameters``: used in place of the module's own of those names, on ``device``. If the model is broken the result
    is not finite.
    """
    total = torch.zeros((), dtype=torch.float64, device=device)
    tokens = 0
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            for batch in batches:
                inputs, targets = batch.inputs.to(device), batch.targets.to(device)
                made = functional_call(module, dict(parameters or {}), (inputs,))
                logits = getattr(made, "logits", made)
                total += cross_entropy(logits, targets)
                tokens += targets.numel()
    finally:
        module.train(training)
    return float(total) / tokens
