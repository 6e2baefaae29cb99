"""Attention in which tokens see their own document only.

With a dense mask, of batch x 1 x sequence x sequence, torch's fast kernels cannot be used. On a CUDA device a training
step uses a mask of blocks in its place (flex attention), once that has given what the dense one gives.
"""

import logging
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from diloco.model.entrypoint import one_line

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

_log = logging.getLogger(__name__)

_TRIED_TOKENS, _TRIED_DOCUMENT = 256, 96
_ROUNDING: Final = 0.05
"""Of the largest value: how much both may differ, in BF16 (ours)."""


def document_mask(positions: Tensor, head_width: int, dtype: torch.dtype) -> "Tensor | BlockMask":
    """Which tokens each sees; ``positions`` (batch, sequence) are 0 where a document begins.

    ``dtype``: what the model computes in where autocast says nothing.
    """
    device = positions.device
    if device.type == "cuda" and torch.is_grad_enabled():
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else dtype
        if _compiles_in_checkpoints() and _blocks_work(device, head_width, dtype):
            return block_mask(positions)
    return dense_mask(positions)


def dense_mask(positions: Tensor) -> Tensor:
    """As bool, (batch, 1, sequence, sequence)."""
    documents = (positions == 0).cumsum(1)
    return (documents[:, None, :, None] == documents[:, None, None, :]).tril()


def block_mask(positions: Tensor) -> "BlockMask":
    """The same in blocks, of which attention leaves out those that nobody sees."""
    documents = (positions == 0).cumsum(1)

    def sees(row: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (documents[row, query] == documents[row, key]) & (query >= key)

    rows, length = positions.shape
    made: BlockMask = _flex("create_block_mask", positions.device)(
        sees, B=rows, H=None, Q_LEN=length, KV_LEN=length, device=str(positions.device)
    )
    return made


def attend(query: Tensor, key: Tensor, value: Tensor, mask: "Tensor | BlockMask | None") -> Tensor:
    """Attention of (batch, heads, sequence, head width); without a mask each row is one document."""
    if mask is None or isinstance(mask, Tensor):
        return scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None)
    made: Tensor = _flex("flex_attention", query.device)(query, key, value, block_mask=mask)
    return made


@cache
def _flex(name: str, device: torch.device) -> Any:
    """A function of torch's flex attention; compiled where it is to be fast."""
    from torch.nn.attention import flex_attention  # noqa: PLC0415  # loads torch's compiler

    function = getattr(flex_attention, name)
    return torch.compile(function) if device.type == "cuda" else function


@cache
def _compiles_in_checkpoints() -> bool:
    """Whether a compiled function is compiled inside of selective checkpointing too; in older torch it is not."""
    from torch.utils import checkpoint  # noqa: PLC0415  # most models have no mask

    mode = getattr(checkpoint, "_CachingTorchDispatchMode", None)
    return mode is not None and "ignore_compile_internals" in vars(mode)


@cache
def _blocks_work(device: torch.device, head_width: int, dtype: torch.dtype) -> bool:
    """Whether attention by blocks, forward and backward, gives there what it gives with a dense mask."""
    generator = torch.Generator(device).manual_seed(0)
    values = torch.randn(1, 2, _TRIED_TOKENS, head_width, generator=generator, device=device).to(dtype)
    positions = torch.arange(_TRIED_TOKENS, device=device)[None] % _TRIED_DOCUMENT
    found: list[list[Tensor]] = []
    try:
        for mask in (dense_mask(positions), block_mask(positions)):
            given = values.clone().requires_grad_()
            mixed = attend(given, given.flip(-1), given.cos(), mask)
            found.append([mixed.detach(), *torch.autograd.grad(mixed.square().sum(), given)])
        problem = "" if all(map(_near, *found)) else "they give other values"
    except Exception as error:  # noqa: BLE001  # the compiler's errors have no class of their own that is public
        problem = one_line(error)
    if problem:
        _log.warning("data.documentMask: a dense mask is used on %s, as blocks do not work (%s)", device, problem)
    return not problem


def _near(dense: Tensor, other: Tensor) -> bool:
    return bool((dense - other).abs().max() <= _ROUNDING * dense.abs().max())
