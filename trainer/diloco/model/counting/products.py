"""Counts what a model computes for a token: the operations of its matrix products, as MFU counts them.

A product of matrices of n x k and k x m takes 2 n k m operations. A layer has one in the forward pass and, in the
backward pass, one for each of its two factors that needs a gradient; attention has two, over the whole square of
positions (as in arXiv 2204.02311, appendix B). Look-ups have none. What is computed twice counts once.
"""

import logging

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from diloco.model.counting.without_values import without_values
from diloco.model.entrypoint import one_line
from diloco.model.logits import logits_of

_log = logging.getLogger(__name__)


def flops_of_token(module: nn.Module, length: int) -> int:
    """Operations of a token's forward and backward pass in a sequence of ``length`` tokens; 0: not known.

    torch counts them in passes without values, so ``module`` may be on the meta device.
    """
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415  # slow to load

    try:
        # Plain attention: the others' backward passes compute a product again.
        with without_values(module), FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            logits = logits_of(module, torch.zeros(1, length, dtype=torch.int64))
            torch.autograd.backward([logits], [torch.empty_like(logits)])
    except (Exception, SystemExit) as error:  # noqa: BLE001  # a user's model may raise anything
        _log.info("the operations of a step are not known: a pass without values raised %s", one_line(error))
        return 0
    return int(counter.get_total_flops()) // length
