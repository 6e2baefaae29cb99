"""Checks before training that a model supports what training needs, so that an error is one line at the start."""

import torch
from torch import Tensor, nn

from diloco.core.finite_check import problem_with
from diloco.model.constants import BufferWatch, changes_in_training
from diloco.model.entrypoint import one_line
from diloco.model.errors import ModelError
from diloco.model.fragments import trained_parameters
from diloco.model.logits import logits_of
from diloco.model.randomness import seeded

_PROBE_TOKENS = 8


def check_model(module: nn.Module, sequence_length: int, field: str) -> None:
    """Check that ``module`` can be trained and synchronized. ``field`` is its place in the manifest.

    Raises:
        ModelError: nothing to train, a tensor without values, a parameter that is not f32 or holds values that cannot
            be trained, a buffer that training changes (running statistics: learners would not receive each other's),
            state that is not a tensor, or logits of a wrong shape.
    """
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_meta:
            raise ModelError(f"{field}: {name} is on the meta device, without values; build it on the CPU")
    parameters = trained_parameters(module)
    if not parameters:
        raise ModelError(f"{field}: the model has no parameter that requires a gradient")
    for name, parameter in parameters.items():
        if parameter.dtype != torch.float32:
            raise ModelError(f"{field}: parameter {name} is {parameter.dtype}, it must be torch.float32")
    for name, part in module.named_modules():
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            raise ModelError(f"{field}: {name or 'the model'} has extra state, which is not synchronized; use buffers")
    length = min(sequence_length, _PROBE_TOKENS)
    vocabulary_size_of(module, length, field)
    _check_buffers(module, length, field)
    for name, parameter in parameters.items():
        if problem := problem_with(parameter.detach()):
            raise ModelError(f"{field}: parameter {name}: {problem}; initialize it with smaller values")


def _check_buffers(module: nn.Module, length: int, field: str) -> None:
    """Find a buffer that a forward pass in training changes and one in evaluation does not (so not a growing cache)."""
    if next(module.buffers(), None) is None:
        return
    watch = BufferWatch(module, saved_only=False)
    tokens = torch.zeros(2, length, dtype=torch.int64, device=next(module.parameters()).device)
    training = module.training
    module.train()
    try:
        with seeded(0), torch.no_grad():
            module(tokens)
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"{field}: forward(tokens) of shape (2, {length}) in training raised {one_line(error)}"
        ) from error
    finally:
        module.train(training)
    if changed := watch.changed():
        raise ModelError(f"{field}: {changes_in_training(changed)}")


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
            logits = logits_of(module, tokens)
    except (Exception, SystemExit) as error:
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
