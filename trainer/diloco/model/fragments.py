"""Maps the model's parameters to fragments: flat f32 buffers in host memory, with each tensor at its slot.

Only parameters that require a gradient are synchronized. Frozen ones and buffers are the same in every process, because
every process builds the same model, which the layout's digest verifies. Tied weights are one parameter and appear once,
under their first name.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from diloco.core.fragments import Fragment, Layout, TensorSpec, partition
from diloco.model.constants import constants_digest


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that are trained, by name, in the order in which the module registered them; tied ones once."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def embedding_parameters(module: nn.Module) -> frozenset[int]:
    """Identities (``id``) of the parameters of an ``nn.Embedding`` or ``nn.EmbeddingBag``, including tied ones."""
    return frozenset(
        id(parameter)
        for part in module.modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag)
        for parameter in part.parameters(recurse=False)
    )


def layout_of(module: nn.Module, fragments: int) -> Layout:
    """Cut a model into ``fragments`` fragments.

    A parameter is an embedding if any ``nn.Embedding`` holds it, even if an output layer shares it. A model on the meta
    device has sizes and no values, so its layout has no digest of constants.

    Raises:
        LayoutError: more fragments than parameter tensors.
        ModelError: a frozen parameter or buffer is not a plain, strided tensor.
    """
    embeddings = embedding_parameters(module)
    tensors = [
        TensorSpec(name, tuple(parameter.shape), id(parameter) in embeddings)
        for name, parameter in trained_parameters(module).items()
    ]
    return replace(partition(tensors, fragments), constants=constants_digest(module))


def read_fragment(module: nn.Module, fragment: Fragment, out: Tensor) -> None:
    """Copy a fragment's parameters into ``out``, flat, f32, ``fragment.numel`` elements.

    Raises:
        ValueError: ``out`` is of another size or type.
    """
    _check(fragment, out)
    with torch.no_grad():
        for parameter, part in _pairs(module, fragment, out):
            part.copy_(parameter)


def write_fragment(module: nn.Module, fragment: Fragment, values: Tensor) -> None:
    """Overwrite a fragment's parameters, in place, with ``values``, flat, f32, ``fragment.numel`` elements.

    From pinned memory to a CUDA device, the copy is queued after the work already queued there, and not waited for.

    Raises:
        ValueError: ``values`` is of another size or type.
    """
    _check(fragment, values)
    with torch.no_grad():
        for parameter, part in _pairs(module, fragment, values):
            parameter.copy_(part, non_blocking=True)


def views(fragment: Fragment, flat: Tensor) -> dict[str, Tensor]:
    """The tensors in a fragment's flat buffer, by name, in their shapes, without a copy."""
    return {
        slot.tensor.name: flat[slot.offset : slot.offset + slot.tensor.numel].view(slot.tensor.shape)
        for slot in fragment.slots
    }


def whole_tensors(fragments: Iterable[tuple[Fragment, Tensor]]) -> dict[str, Tensor]:
    """The tensors in all fragments, each with its flat buffer, by name."""
    return {name: tensor for fragment, flat in fragments for name, tensor in views(fragment, flat).items()}


def _pairs(module: nn.Module, fragment: Fragment, flat: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
    return [(module.get_parameter(name), part) for name, part in views(fragment, flat).items()]


def _check(fragment: Fragment, flat: Tensor) -> None:
    if flat.shape != (fragment.numel,) or flat.dtype != torch.float32:
        raise ValueError(
            f"fragment {fragment.index} is {fragment.numel} f32 elements, not {flat.dtype} of shape {tuple(flat.shape)}"
        )
