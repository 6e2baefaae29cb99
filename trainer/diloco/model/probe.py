"""Checks that a model supports what training needs, so that an error is one line at the start.

``check_model`` looks at the model alone: every process may do so. What needs a forward pass is done by the learner, on
its device.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from diloco.core.finite_check import problem_with
from diloco.model.entrypoint import one_line
from diloco.model.errors import ModelError
from diloco.model.fragments import trained_parameters
from diloco.model.logits import logits_of
from diloco.model.randomness import seeded
from diloco.model.sharded import is_in_bf16
from diloco.model.values import drawn_values, swapped

_ROUNDING = 1e-2
"""Of what a change does where it is seen: what it may do where it is not. Between rounding, 1e-6, and 1 (ours)."""


def check_model(module: nn.Module, field: str) -> None:
    """Check that ``module`` can be trained and synchronized. ``field`` is its place in the manifest.

    Raises:
        ModelError: nothing to train, a tensor without values, a parameter that is not f32, has sparse gradients, shares
            memory, or holds values that cannot be trained, or state that is not a tensor.
    """
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise ModelError(
                f"{field}: {name} is lazy, without a shape; call the model once, or give its layer's sizes"
            )
        if tensor.is_meta:
            raise ModelError(f"{field}: {name} is on the meta device, without values; build it on the CPU")
    parameters = trained_parameters(module)
    if not parameters:
        raise ModelError(f"{field}: the model has no parameter that requires a gradient")
    for name, parameter in parameters.items():
        if problem := _problem(parameter):
            raise ModelError(f"{field}: parameter {name}{problem}")
    _check_memory(module, field)
    for name, part in module.named_modules():
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            raise ModelError(f"{field}: {name or 'the model'} has extra state, which is not synchronized; use buffers")
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse and part.weight.requires_grad:
            raise ModelError(f"{field}: {name or 'the model'} has sparse gradients; use sparse=False")


def _problem(parameter: nn.Parameter) -> str:
    """Why it cannot be trained; empty if it can."""
    if parameter.dtype != torch.float32:
        return f" is {parameter.dtype}, it must be torch.float32"
    if _overlaps_itself(parameter):
        return " has elements that share memory; make it of a copy (.clone())"
    problem = problem_with(parameter.detach())
    return f": {problem}; initialize it with smaller values" if problem else ""


def _overlaps_itself(tensor: Tensor) -> bool:
    """Whether two of its elements may be at one place."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < reach:
            return True
        reach += (size - 1) * stride
    return False


def _check_memory(module: nn.Module, field: str) -> None:
    """Check that no trained parameter shares memory with another one; the same one may have several names."""
    places = []
    for name, one in module.named_parameters():
        elements = 1 + sum((size - 1) * stride for size, stride in zip(one.shape, one.stride(), strict=True))
        if one.numel():
            places.append((one.data_ptr(), one.data_ptr() + elements * one.element_size(), name, one.requires_grad))
    places.sort()
    for before, after in pairwise(places):
        if after[0] < before[1] and (before[3] or after[3]):
            raise ModelError(
                f"{field}: parameters {before[2]} and {after[2]} share memory; use one parameter for both, or copy"
            )


def put_in_training(module: nn.Module) -> None:
    """Put ``module`` into training mode, by its own ``train`` if it has one.

    Parts in evaluation mode stay in it, unless the whole model is.
    """
    kept = [part for part in module.modules() if not part.training] if module.training else []
    module.train()
    for part in kept:
        part.training = False


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put ``module`` into evaluation mode inside; afterwards each part of it is in the mode it was in.

    Nothing compiled is used: for other shapes it would be compiled anew, and then differ in the last bit.
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    try:
        with eager:
            yield
    finally:
        module.train(modes[0][1])
        for part, mode in modes:
            part.training = mode


def arithmetic(module: nn.Module, device: torch.device) -> torch.autocast:
    """What evaluation computes in: f32, or bf16 as in training (autocast) if the model has parameters of 16 bits.

    Or if it has them when they are gathered (``sharded.is_in_bf16``).
    """
    halves = is_in_bf16(module) or any(one.dtype in (torch.bfloat16, torch.float16) for one in module.parameters())
    return torch.autocast(device.type, torch.bfloat16, enabled=halves)


def vocabulary_size_of(module: nn.Module, length: int = 2, field: str = "model") -> int:
    """How many token ids ``module`` gives logits for, found by a forward pass of ``length`` tokens.

    Raises:
        ModelError: the forward pass raises or its output is not (batch, sequence, vocabulary).
    """
    device = next(module.parameters()).device
    tokens = torch.zeros(1, length, dtype=torch.int64, device=device)
    try:
        with seeded(0), torch.no_grad(), evaluating(module), arithmetic(module, device):
            logits = logits_of(module, tokens)
    except (Exception, SystemExit) as error:
        raise ModelError(f"{field}: forward(tokens) of shape (1, {length}) raised {one_line(error)}") from error
    if not isinstance(logits, Tensor):
        raise ModelError(f"{field}: forward(tokens) returned a {type(logits).__name__}, not a tensor of logits")
    if logits.dim() != 3 or logits.shape[:2] != (1, length) or not logits.is_floating_point():
        raise ModelError(
            f"{field}: forward(tokens) of shape (1, {length}) returned {logits.dtype} of shape {tuple(logits.shape)}, "
            f"it must return floating-point logits of shape (1, {length}, vocabulary)"
        )
    return int(logits.shape[2])


def looks_ahead(module: nn.Module, length: int) -> bool:
    """Whether the logits of one token depend on the tokens after it, as in a model that is no causal one.

    ``module`` maps ``length`` token ids, two or more, to logits. Parameters have drawn values meanwhile, as a new model
    may not look at all.
    """
    device = next(module.parameters()).device
    tokens = torch.zeros(2, length, dtype=torch.int64, device=device)
    tokens[1, -1] = 1
    values = drawn_values(trained_parameters(module), device)
    with seeded(0), torch.no_grad(), evaluating(module), swapped(module, values), arithmetic(module, device):
        one, other = logits_of(module, tokens).float()
    changes = (one - other).abs().amax(dim=1)
    return not float(changes[:-1].max()) <= _ROUNDING * float(changes[-1])


def check_documents(module: nn.Module, length: int) -> None:
    """Check that tokens see their own document only, if ``position_ids`` begin at 0 in each.

    It changes the first of two documents, in ``length`` tokens, two or more, and looks at the logits of the second.
    Parameters have drawn values meanwhile: with those of a new model a layer may have no effect.

    Raises:
        ModelError: they see others, or the forward pass raises.
    """
    device = next(module.parameters()).device
    first = length // 2
    tokens = torch.zeros(2, length, dtype=torch.int64, device=device)
    tokens[1, :first] = 1
    places = torch.arange(length, device=device)
    apart = torch.where(places < first, places, places - first).expand(2, -1)
    values = drawn_values(trained_parameters(module), device)
    use = "use another model, or leave documentMask out"
    try:
        with seeded(0), torch.no_grad(), evaluating(module), swapped(module, values), arithmetic(module, device):
            made = [logits_of(module, tokens, positions).float()[:, first:] for positions in (None, apart)]
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"data.documentMask: forward(tokens, position_ids=...) raised {one_line(error)}; {use}"
        ) from error
    as_one, as_two = (float((before - after).abs().max()) for before, after in made)
    if not as_two <= _ROUNDING * as_one:
        raise ModelError(
            "data.documentMask: the model's tokens see the document before theirs, though position_ids begin at 0 in "
            f"each, as they do in transformers with use_cache; {use}"
        )
