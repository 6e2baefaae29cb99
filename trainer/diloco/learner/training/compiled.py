"""Compiles a model's blocks, which a device then computes in fewer and larger operations (torch.compile)."""

import logging
import time
from collections.abc import Callable

import torch
from torch import nn

from diloco.model import ModelError
from diloco.model.blocks import blocks_of
from diloco.model.entrypoint import one_line

_log = logging.getLogger(__name__)


def compile_blocks(module: nn.Module, step: Callable[[], object]) -> None:
    """Compile ``module``, which is on its device, block by block; ``step`` makes a forward and a backward pass.

    Parameters keep their names. Evaluations stay as they are (see ``evaluating``).

    Raises:
        ModelError: torch cannot compile it; or what ``step`` raises.
    """
    blocks = blocks_of(module) or [module]
    for one in blocks:
        one.compile()
    began = time.monotonic()
    try:
        step()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # the compiler's errors have no class of their own that is public
        raise ModelError(f"training.compile: torch cannot compile the model ({one_line(error)}); use false") from error
    _log.info("compiled %d blocks in %.1f s", len(blocks), time.monotonic() - began)
