"""Gives a model other values of its parameters for a while."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from diloco.model.sharded import is_parted, part_of, swapped_parts


@contextmanager
def swapped(module: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Give parameters other values inside: the same parameters, so that every name and alias of one sees them.

    A strided parameter gets a strided copy, so that a model computes the same to the bit wherever its values are from.
    """
    parameters = {name: module.get_parameter(name) for name in values}
    if any(map(is_parted, parameters.values())):
        with swapped_parts(module, {name: part_of(values[name], one) for name, one in parameters.items()}):
            yield
        return
    before = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            given = values[name]
            alike = given.stride() == parameter.stride()
            parameter.data = given if alike else torch.empty_like(parameter).copy_(given)
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = before[name]


def drawn_values(parameters: dict[str, nn.Parameter], device: torch.device) -> dict[str, Tensor]:
    """Values by name: about 1 for norms and biases, and small enough elsewhere for the size of a layer's input.

    Parameters with inputs of one size share their values, so that this takes less memory than the model.
    """
    inputs = {name: one.shape[1:].numel() if one.dim() > 1 else 0 for name, one in parameters.items()}
    most: dict[int, int] = {}
    for name, one in parameters.items():
        most[inputs[name]] = max(one.numel(), most.get(inputs[name], 0))
    drawn: dict[int, Tensor] = {}
    for size, numel in most.items():
        generator = torch.Generator(device).manual_seed(size)
        reach = 1.7 * size**-0.5 if size else 0.5
        drawn[size] = torch.empty(numel, device=device).uniform_(-reach, reach, generator=generator)
        drawn[size] += 0.0 if size else 1.0
    return {name: drawn[inputs[name]][: one.numel()].view(one.shape) for name, one in parameters.items()}
