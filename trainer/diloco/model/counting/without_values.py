"""Passes of a model that compute shapes alone (torch's fake tensors), and so need neither memory nor a device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def without_values(
    module: nn.Module, kind: Callable[[nn.Parameter], torch.dtype] = lambda one: one.dtype
) -> Iterator[dict[str, Tensor]]:
    """Inside, parameters and buffers of ``module``, and all that is computed, have no values; the CPU is their device.

    Gives the parameters by name. ``kind``: their type. What depends on values, as loops over experts, raises.
    """
    # They load a part of torch's compiler.
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415
    from torch.nn.utils.stateless import _reparametrize_module  # noqa: PLC0415  # functional_call has no backward pass

    with FakeTensorMode(allow_non_fake_inputs=True):
        parameters = {
            name: torch.empty(one.shape, dtype=kind(one), device="cpu").requires_grad_(one.requires_grad)
            for name, one in module.named_parameters()
        }
        buffers = {name: torch.empty(one.shape, dtype=one.dtype, device="cpu") for name, one in module.named_buffers()}
        with _reparametrize_module(module, {**parameters, **buffers}, tie_weights=True), _experts_together(module):
            yield parameters


@contextmanager
def _experts_together(module: nn.Module) -> Iterator[None]:
    """Have models of transformers compute all experts at once, without a look at which tokens they get."""
    configs = {id(one): one for part in module.modules() if (one := getattr(part, "config", None)) is not None}
    before = {key: getattr(one, "_experts_implementation", None) for key, one in configs.items()}
    known = {key: how for key, how in before.items() if how is not None}
    for key in known:
        configs[key]._experts_implementation = "batched_mm"  # noqa: SLF001  # no public name
    try:
        yield
    finally:
        for key, how in known.items():
            configs[key]._experts_implementation = how  # noqa: SLF001  # as above
