"""How a model's blocks compute: what they keep for the backward pass (activation checkpointing), and compiled or not.

A block's parameters keep their names, and an evaluation computes as without any of it. What is computed again is inside
of what is compiled, and both are inside of FSDP's hooks, as in torchtitan.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from functools import partial, wraps
from types import MethodType
from typing import Any, Final

import torch
from torch import nn

from diloco.model import ModelError
from diloco.model.blocks import blocks_of
from diloco.model.entrypoint import one_line
from diloco.spec.training import ActivationCheckpointing, TrainingSpec

_log = logging.getLogger(__name__)

_FIELD: Final = "training.activationCheckpointing"
_PRODUCTS: Final = frozenset(("mm", "addmm", "_grouped_mm", "_scaled_mm"))
"""Operators of layers: of each, every second result is kept, as in torchtitan."""
_ATTENTION: Final = frozenset(
    (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "flex_attention",
    )
)
"""Operators whose results are kept: they cost as much as the sequence is long."""


def checkpoint_blocks(module: nn.Module, how: ActivationCheckpointing) -> None:
    """Have each block of ``module`` compute again in the backward pass what it has not kept. Twice is as once.

    Full keeps what goes into a block, Selective the results of attention and of half the matrix products besides.

    Raises:
        ModelError: the model has no blocks.
    """
    if how == "None":
        return
    blocks = blocks_of(module)
    if not blocks:
        raise ModelError(f"{_FIELD}: {how} needs a model with blocks in an nn.ModuleList or nn.Sequential; use None")
    for one in blocks:
        if not hasattr(one.forward, "computes_again"):
            # Bound anew, as a copy of the block has to compute with its own parameters.
            plain = one.forward if "forward" in vars(one) else type(one).forward
            again = _computing_again(plain, how)
            one.forward = again if "forward" in vars(one) else MethodType(again, one)


def prepare_blocks(module: nn.Module, training: TrainingSpec, step: Callable[[], object]) -> None:
    """Compile ``module``'s blocks if the job says so. ``step`` makes a forward and a backward pass.

    Evaluations are not compiled (see ``evaluating``).

    Raises:
        ModelError: torch cannot compile the model or compute its blocks again; or what ``step`` raises.
    """
    how = training.activation_checkpointing
    if not training.compile and how == "None":
        return
    blocks = (blocks_of(module) or [module]) if training.compile else []
    for one in blocks:
        one.compile()
    began = time.monotonic()
    try:
        step()
    except (torch.OutOfMemoryError, torch.distributed.DistError):  # another process may have ended
        raise
    except RuntimeError as error:  # neither has a class of its own for errors that is public
        if training.compile:
            text = f"training.compile: torch cannot compile the model ({one_line(error)}); use false"
        else:
            text = f"{_FIELD}: torch cannot compute a block again ({one_line(error)}); use None"
        raise ModelError(text) from error
    if blocks:
        _log.info("compiled %d blocks in %.1f s", len(blocks), time.monotonic() - began)


def _computing_again(forward: Callable[..., Any], how: ActivationCheckpointing) -> Callable[..., Any]:
    # Only here: most jobs do without it.
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts  # noqa: PLC0415

    def contexts() -> Any:
        return create_selective_checkpoint_contexts(_Kept())  # type: ignore[no-untyped-call]  # torch's

    again = partial(checkpoint, use_reentrant=False, **({"context_fn": contexts} if how == "Selective" else {}))

    @wraps(forward)
    def computed(*args: Any, **kwargs: Any) -> Any:
        return again(forward, *args, **kwargs) if torch.is_grad_enabled() else forward(*args, **kwargs)

    computed.computes_again = how  # type: ignore[attr-defined]  # a mark
    return computed


class _Kept:
    """Says which results one pass through a block keeps."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[bool, str]] = Counter()

    def __call__(self, context: Any, operator: Any, *_: object, **__: object) -> bool:
        """Whether the result of ``operator`` is kept; called in the forward pass, and by older torch in both."""
        name = getattr(operator, "overloadpacket", operator).__name__
        self._seen[context.is_recompute, name] += 1
        return name in _ATTENTION or (name in _PRODUCTS and self._seen[context.is_recompute, name] % 2 == 1)
