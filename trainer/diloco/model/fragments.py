"""Maps the model's parameters to fragments: flat f32 buffers in host memory, with each tensor at its slot.

Only parameters that require a gradient are synchronized. Frozen ones and buffers are the same in every process, because
every process builds the same model, which the layout's digest verifies. Tied weights are one parameter and appear once,
under their first name. The piece of a split parameter is some of its rows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from diloco.core.fragments import Fragment, Layout, TensorSpec, partition
from diloco.model.constants import constants_digest
from diloco.model.sharded import whole


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


def output_weight(module: nn.Module) -> str:
    """Name of the trained weight of the output layer; empty if no layer is recognized as one.

    It is the last ``nn.Linear``, in the order of registration, with one output for each row of an embedding (ours).
    """
    parts = list(module.modules())
    rows = {part.num_embeddings for part in parts if isinstance(part, nn.Embedding | nn.EmbeddingBag)}
    layers = [part for part in parts if isinstance(part, nn.Linear) and part.out_features in rows]
    names = {id(parameter): name for name, parameter in trained_parameters(module).items()}
    return names.get(id(layers[-1].weight), "") if layers else ""


def layout_of(module: nn.Module, fragments: int) -> Layout:
    """Cut a model into ``fragments`` fragments.

    A parameter is an embedding if any ``nn.Embedding`` holds it, even if an output layer shares it. Large embeddings
    and the output layer's weight are split by rows (`diloco.core.fragments.partition`). A model on the meta
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
    return replace(partition(tensors, fragments, output_weight(module)), constants=constants_digest(module))


def read_fragment(module: nn.Module, fragment: Fragment, out: Tensor) -> None:
    """Copy a fragment's parameters into ``out``, on their device, flat, f32, ``fragment.numel`` elements.

    Raises:
        ValueError: ``out`` is of another size or type.
    """
    _read(slot_values(module, fragment), fragment, out)


def write_fragment(module: nn.Module, fragment: Fragment, values: Tensor) -> None:
    """Overwrite a fragment's parameters, in place, with ``values``, flat, f32, ``fragment.numel`` elements.

    From pinned memory to a CUDA device, the copy is queued after the work already queued there, and not waited for.

    Raises:
        ValueError: ``values`` is of another size or type.
    """
    _write(slot_values(module, fragment), fragment, values)


def slot_values(module: nn.Module, fragment: Fragment) -> Iterator[Tensor]:
    """The module's parameters, or their rows, at the fragment's slots, without a copy unless they are parted."""
    return (_rows(whole(module.get_parameter(slot.tensor.name)), slot.tensor) for slot in fragment.slots)


class FragmentsInModule:
    """Fragments of one module, whose parameters are looked up once: that takes longer than to copy a small fragment.

    The module must keep its parameters; what they hold may be replaced.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parameters = trained_parameters(module)

    def values(self, fragment: Fragment) -> list[Tensor]:
        """See `slot_values`."""
        return [_rows(whole(self._parameters[slot.tensor.name]), slot.tensor) for slot in fragment.slots]

    def read(self, fragment: Fragment, out: Tensor) -> None:
        """See `read_fragment`."""
        _read(self.values(fragment), fragment, out)

    def write(self, fragment: Fragment, values: Tensor) -> None:
        """See `write_fragment`."""
        _write(self.values(fragment), fragment, values)


def whole_tensors(layout: Layout, flats: Iterable[Tensor]) -> dict[str, Tensor]:
    """All parameters, by name, in their shapes, from ``flats``, each fragment's flat buffer.

    Only those that are split are copied.
    """
    pieces: dict[str, list[tuple[int, Tensor]]] = {}
    for fragment, flat in zip(layout.fragments, flats, strict=True):
        for slot, part in zip(fragment.slots, _parts(fragment, flat), strict=True):
            pieces.setdefault(slot.tensor.name, []).append((slot.tensor.first_row, part))
    return {
        name: parts[0][1] if len(parts) == 1 else torch.cat([part for _, part in sorted(parts, key=lambda one: one[0])])
        for name, parts in pieces.items()
    }


def _rows(parameter: Tensor, piece: TensorSpec) -> Tensor:
    whole = parameter.shape == piece.shape
    return parameter if whole else parameter.narrow(0, piece.first_row, piece.shape[0])


def _parts(fragment: Fragment, flat: Tensor) -> list[Tensor]:
    """What is at each slot of the flat buffer, in its shape, without a copy."""
    return [flat[slot.offset : slot.offset + slot.tensor.numel].view(slot.tensor.shape) for slot in fragment.slots]


@torch.no_grad()
def _read(tensors: Iterable[Tensor], fragment: Fragment, out: Tensor) -> None:
    _check(fragment, out)
    torch.cat([one.reshape(-1) for one in tensors], out=out)


@torch.no_grad()
def _write(tensors: Iterable[Tensor], fragment: Fragment, values: Tensor) -> None:
    _check(fragment, values)
    for one, part in zip(tensors, _parts(fragment, values), strict=True):
        one.copy_(part, non_blocking=True)


def _check(fragment: Fragment, flat: Tensor) -> None:
    if flat.shape != (fragment.numel,) or flat.dtype != torch.float32:
        raise ValueError(
            f"fragment {fragment.index} is {fragment.numel} f32 elements, not {flat.dtype} of shape {tuple(flat.shape)}"
        )


def hidden_matrices(module: nn.Module) -> tuple[str, ...]:
    """Names of the trained parameters that map features to features, in order: Muon trains these.

    These are the parameters of two dimensions that are called weights (``weight``, ``in_proj_weight``), and stacks of
    matrices (experts, heads), of whatever name: three dimensions, each of at least 2. A bare table, such as one of
    positions or Mamba's ``A_log``, has two dimensions and another name. Kernels of convolutions, embeddings and the
    output layer (``output_weight``) are left out. An embedding is what an ``nn.Embedding`` holds, as in ``layout_of``.
    """
    others, output = embedding_parameters(module), output_weight(module)
    kernels = frozenset(id(one) for part in module.modules() if isinstance(part, _ConvNd) for one in part.parameters())
    return tuple(
        name
        for name, parameter in trained_parameters(module).items()
        if name != output
        and id(parameter) not in others | kernels
        and _maps_features(name.rpartition(".")[2], parameter)
    )


def _maps_features(own_name: str, parameter: nn.Parameter) -> bool:
    if parameter.dim() == 3:
        return min(parameter.shape) > 1
    return parameter.dim() == 2 and "weight" in own_name
