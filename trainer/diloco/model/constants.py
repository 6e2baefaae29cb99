"""Frozen parameters and buffers: lists them, and computes their digest.

They are not synchronized. So learners have the same model, and the exported model is the evaluated one, only if none of
them changes and every process has the same ones.
"""

from collections.abc import Iterator

import torch
import xxhash
from torch import Tensor, nn

from diloco.model.errors import ModelError
from diloco.model.sharded import part


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
    """XXH3-128 of a tensor's values, of those this process has, hexadecimal; ``name`` is for messages.

    Raises:
        ModelError: it is not a plain, strided tensor.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise ModelError(f"model: {name} is a {tensor.layout} tensor of {tensor.dtype}; use a dense one")
    flat = part(tensor.detach()).cpu().contiguous().reshape(-1)
    return xxhash.xxh3_128_hexdigest(flat.view(torch.uint8).numpy().data)


def digests(module: nn.Module) -> dict[str, str]:
    """Of each frozen parameter and each buffer, by ``frozen parameter NAME`` and ``buffer NAME``.

    Raises:
        ModelError: one is not a plain, strided tensor.
    """
    buffers = {f"buffer {name}": buffer for name, buffer, _ in _buffers(module)}
    return {name: tensor_digest(name, buffer) for name, buffer in buffers.items()} | frozen_digests(module)


def frozen_digests(module: nn.Module) -> dict[str, str]:
    """Of each frozen parameter, by ``frozen parameter NAME``; raises as ``digests`` does."""
    frozen = {f"frozen parameter {name}": one for name, one in module.named_parameters() if not one.requires_grad}
    return {name: tensor_digest(name, tensor) for name, tensor in frozen.items()}


def changed_in_training(what: str) -> ModelError:
    """The error that training changes ``what``, which is not synchronized."""
    return ModelError(
        f"model: training changes {what}, and only trained parameters are synchronized; use layers without "
        "running statistics (LayerNorm, GroupNorm), leave it as it is, or make it a trained parameter"
    )


class SavedBuffers:
    """Detects a write to a buffer in the state dict, which counts even if no result depends on it, as yet."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before = self._now()

    def changed(self) -> str:
        """``buffer NAME`` of one that was replaced, written to, added or removed; empty if there is none."""
        now = self._now()
        names = self._before.keys() | now.keys()
        return min((f"buffer {name}" for name in names if self._before.get(name) != now.get(name)), default="")

    def _now(self) -> dict[str, tuple[int, int]]:
        # torch has no public name for the count of writes.
        return {name: (id(one), one._version) for name, one, saved in _buffers(self._module) if saved}  # noqa: SLF001


def _buffers(module: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Name, buffer, and whether it is in the state dict; each once."""
    seen: set[int] = set()
    for prefix, owner in module.named_modules():
        for name, buffer in owner._buffers.items():  # noqa: SLF001  # named_buffers does not say which are saved
            if buffer is not None and id(buffer) not in seen:
                seen.add(id(buffer))
                saved = name not in owner._non_persistent_buffers_set  # noqa: SLF001  # as above
                yield f"{prefix}.{name}".lstrip("."), buffer, saved
