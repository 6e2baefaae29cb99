"""Counts the memory of a step's activations without making the step: in passes that compute shapes alone."""

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from diloco.learner.training.block_passes import checkpoint_blocks
from diloco.model.blocks import blocks_of
from diloco.model.counting.without_values import without_values
from diloco.model.entrypoint import one_line
from diloco.model.errors import ModelError
from diloco.model.logits import cross_entropy, logits_of
from diloco.plan.memory import Passes, gathered_bytes
from diloco.spec.placement import Pool
from diloco.spec.training import TrainingSpec


def passes_of(module: nn.Module, training: TrainingSpec, pool: Pool) -> Passes:
    """What the passes of a learner's processes in ``pool`` hold. ``module`` and Auto: see ``activation_bytes``.

    Raises:
        ModelError: see ``activation_bytes``.
    """
    share = -(-pool.batch_of(training) // pool.ranks)
    sequences = min(share, training.micro_batch_size or share)
    parted = pool.parts > 1
    gathered = 0
    if parted:
        whole, blocks = _numel(module), list(map(_numel, blocks_of(module)))
        gathered = gathered_bytes(whole - sum(blocks), max(blocks, default=0), 4 if training.precision == "F32" else 2)
    return Passes(sequences, activation_bytes(module, training, sequences, parted=parted), gathered)


def _numel(module: nn.Module) -> int:
    return sum(one.numel() for one in module.parameters())


def activation_bytes(module: nn.Module, training: TrainingSpec, sequences: int, *, parted: bool) -> int:
    """The most that a forward and backward pass of ``sequences`` holds beside parameters and their gradients.

    ``module`` may be on the meta device; its blocks compute as ``training`` says from then on. Auto counts as BF16,
    as on an accelerator. ``parted``: FSDP gathers parameters in what the step computes in; else autocast keeps a copy.

    Raises:
        ModelError: the passes depend on values, or raise.
    """
    checkpoint_blocks(module, training.activation_checkpointing)
    bf16 = training.precision != "F32"
    kind = torch.bfloat16 if bf16 and parted else torch.float32
    try:
        with without_values(module, lambda one: kind if one.dtype == torch.float32 else one.dtype) as parameters:
            tokens = torch.zeros(sequences, training.sequence_length, dtype=torch.int64)
            with (held := _Held(parameters)):
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16 and not parted):
                    loss = cross_entropy(logits_of(module, tokens), tokens)
                torch.autograd.backward([loss])
    except (Exception, SystemExit) as error:  # a user's model may raise anything
        raise ModelError(f"model: a pass without values raised {one_line(error)}") from error
    return held.most_bytes


class _Held(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Adds up the memory of what is computed inside, as long as something refers to it."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.most_bytes = self._now = 0
        self._seen = set(map(_key, (one.untyped_storage() for one in parameters.values())))
        for one in parameters.values():
            if one.requires_grad:
                one.register_post_accumulate_grad_hook(_drop)  # type: ignore[no-untyped-call]  # torch's

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in tree_iter(made):
            if isinstance(one, Tensor):
                self._add(one.untyped_storage())
        return made

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = _key(storage), storage.nbytes()
        if key not in self._seen:
            self._seen.add(key)
            self._now += size
            self.most_bytes = max(self.most_bytes, self._now)
            weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self._now -= size


def _key(storage: torch.UntypedStorage) -> int:
    return int(storage._cdata)  # noqa: SLF001  # its address, which a fake one does not tell


def _drop(parameter: Tensor) -> None:
    """Gradients count elsewhere."""
    parameter.grad = None
