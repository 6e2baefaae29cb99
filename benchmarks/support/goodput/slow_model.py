"""The built-in model on slow hardware, as a job's `model.entrypoint`: each step takes a fixed time longer.

So several learners on one machine leave it mostly idle, as learners with an accelerator do, and whatever else the
machine does makes a step longer by no more than it takes.
"""

import time

import torch
from torch import Tensor, nn

from diloco.model.gpt import GPT, GPTConfig
from diloco.spec.presets import PRESETS, TEXT_VOCABULARY


class SlowGPT(GPT):
    """Sleeps in each step."""

    seconds = 0.0

    def forward(self, tokens: Tensor, position_ids: Tensor | None = None) -> Tensor:
        if self.training and torch.is_grad_enabled():
            time.sleep(self.seconds)
        return super().forward(tokens, position_ids)


def pico(seconds: float) -> nn.Module:
    """The smallest preset, for text."""
    model = SlowGPT(GPTConfig(PRESETS["pico"], TEXT_VOCABULARY))
    model.seconds = seconds
    return model
