"""A look at a model before it is trained: does it do what training needs? In one line, not at step one."""

import torch
from torch import Tensor, nn

from diloco.model.entrypoint import one_line
from diloco.model.errors import ModelError
from diloco.model.fragments import trained_parameters
from diloco.model.randomness import seeded

_PROBE_TOKENS = 8


def check_model(module: nn.Module, sequence_length: int, field: str) -> None:
    """Check that ``module`` can be trained and synchronised. ``field`` is where it stands in the manifest.

    Raises:
        ModelError: nothing to train, a parameter that is not f32, running statistics (they are no parameters, so no
            learner would ever receive another's), or logits of a wrong shape.
    """
    parameters = trained_parameters(module)
    if not parameters:
        raise ModelError(f"{field}: the model has no parameter that requires a gradient")
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            raise ModelError(f"{field}: parameter {name} is {parameter.dtype}, it must be torch.float32")
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats:  # noqa: SLF001  # no public base
            raise ModelError(f"{field}: {name} keeps running statistics, which are not synchronised; use a LayerNorm")
    vocabulary_size_of(module, min(sequence_length, _PROBE_TOKENS), field)


def vocabulary_size_of(module: nn.Module, length: int = 2, field: str = "model") -> int:
    """How many token ids ``module`` gives logits for, found by a forward pass of ``length`` tokens.

    Raises:
        ModelError: the forward pass raises or its output is not (batch, sequence, vocabulary).
    """
    device = next(module.parameters()).device
    tokens = torch.zeros(1, length, dtype=torch.int64, device=device)
    training = module.training
    module.eval()
    try:
        with seeded(0), torch.no_grad():
            logits = module(tokens)
    except Exception as error:
        raise ModelError(f"{field}: forward(tokens) of shape (1, {length}) raised {one_line(error)}") from error
    finally:
        module.train(training)
    if not isinstance(logits, Tensor):
        raise ModelError(f"{field}: forward(tokens) returned a {type(logits).__name__}, not a tensor of logits")
    if logits.dim() != 3 or logits.shape[:2] != (1, length) or not logits.is_floating_point():
        raise ModelError(
            f"{field}: forward(tokens) of shape (1, {length}) returned {logits.dtype} of shape {tuple(logits.shape)}, "
            f"it must return floating-point logits of shape (1, {length}, vocabulary)"
        )
    return int(logits.shape[2])
