"""Frozen parameters and buffers: lists them, computes their digest, and detects whether training changes them.

They are not synchronized. So learners have the same model, and the exported model is the evaluated one, only if none of
them changes and every process has the same ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor, nn

from diloco.model.errors import ModelError


def constants_digest(module: nn.Module) -> str | None:
    """XXH3-128 over names, types, shapes and values of frozen parameters and saved buffers, hexadecimal.

    Empty if there are none. None if they have no values, on the meta device.

    Raises:
        ModelError: a tensor is not a plain, strided one; the text names it.
    """
    # Tied parameters once; a buffer with two names under the first.
    constants: dict[str, Tensor] = {name: one for name, one in module.named_parameters() if not one.requires_grad}
    constants |= saved_buffers(module)
    if not constants:
        return ""
    if any(tensor.is_meta for tensor in constants.values()):
        return None
    digest = xxhash.xxh3_128()
    for name, tensor in constants.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {tensor_digest(name, tensor)}\n".encode())
    return digest.hexdigest()


def saved_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Buffers that belong to the model's state, by name, each once under its first name."""
    return {name: buffer for name, buffer, saved in _buffers(module) if saved}


def tensor_digest(name: str, tensor: Tensor) -> str:
    """XXH3-128 of a tensor's values, hexadecimal; ``name`` is for messages.

    Raises:
        ModelError: it is not a plain, strided tensor.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise ModelError(f"model: {name} is a {tensor.layout} tensor of {tensor.dtype}; use a dense one")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return xxhash.xxh3_128_hexdigest(flat.view(torch.uint8).numpy().data)


@dataclass(frozen=True, slots=True)
class _BufferState:
    """A buffer's state at one moment."""

    identity: int
    version: int
    """autograd's count of writes to it."""
    digest: str
    """Empty if it has no values."""


class BufferWatch:
    """Detects a buffer that has changed since the watch began.

    A write counts even if it writes the same values: an average of equal values will still change later.
    """

    def __init__(self, module: nn.Module, *, saved_only: bool) -> None:
        """Begin to watch. ``saved_only``: watch only buffers in the state dict.

        Raises:
            ModelError: a buffer is not a plain, strided tensor.
        """
        self._module = module
        self._saved_only = saved_only
        self._before = {name: _seen(name, buffer) for name, buffer in self._watched()}

    def changed(self, *, look_at_values: bool = True) -> str:
        """Name of a buffer that was replaced, written to or added; empty if there is none.

        ``look_at_values``: also detect writes that autograd does not count, such as through ``.data``; reads every
        value.
        """
        now = dict(self._watched())
        for name in self._before.keys() - now.keys():
            return name
        for name, buffer in now.items():
            before = self._before.get(name)
            if before is None or (id(buffer), buffer._version) != (before.identity, before.version):  # noqa: SLF001
                return name
            if look_at_values and before.digest and tensor_digest(name, buffer) != before.digest:
                return name
        return ""

    def _watched(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, buffer) for name, buffer, saved in _buffers(self._module) if saved or not self._saved_only)


def changes_in_training(name: str) -> str:
    """The error text for a buffer that training changes."""
    return (
        f"training changes buffer {name}, and buffers are not synchronized; use layers without running statistics "
        "(LayerNorm, GroupNorm), or make it a parameter"
    )


def _seen(name: str, buffer: Tensor) -> _BufferState:
    # torch has no public name for the count of writes.
    return _BufferState(id(buffer), buffer._version, "" if buffer.is_meta else tensor_digest(name, buffer))  # noqa: SLF001


def _buffers(module: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Name, buffer, and whether it is in the state dict; each once."""
    seen: set[int] = set()
    for prefix, part in module.named_modules():
        for name, buffer in part._buffers.items():  # noqa: SLF001  # named_buffers does not say which are saved
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                saved = name not in part._non_persistent_buffers_set  # noqa: SLF001  # as above
                yield f"{prefix}.{name}".lstrip("."), buffer, saved
