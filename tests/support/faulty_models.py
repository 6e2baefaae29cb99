"""Models that fail in the training of one learner, as a test says with files in the folder ``FAULTS``."""

import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

FAULTS = "DILOCO_TEST_FAULTS"
"""Name of the environment variable."""
VICTIM = "west/old/0"
HEALTHY_STEPS = 20
STEP_SECONDS = 0.02
"""So that a job takes long enough for what is to happen in it."""


class _Faulty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(257, 8)
        self.output = nn.Linear(8, 257)
        self.spare = nn.Parameter(torch.zeros(64))
        """Loss and gradients do not depend on it, so that no step is skipped whatever it holds."""
        self.steps = 0
        self.faults = Path(os.environ[FAULTS])

    def forward(self, tokens: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.steps += 1
            time.sleep(STEP_SECONDS)
            if VICTIM in sys.argv and self.steps > HEALTHY_STEPS:
                self.fail()
        logits: Tensor = self.output(torch.tanh(self.embedding(tokens)))
        return logits

    def fail(self) -> None:
        """In a training step of the victim."""


class _Hanging(_Faulty):
    def fail(self) -> None:
        """Hang, in the first process that gets here."""
        try:
            (self.faults / "has hung").touch(exist_ok=False)
        except FileExistsError:
            return
        while True:
            time.sleep(1.0)


class _Diverging(_Faulty):
    def fail(self) -> None:
        """Spoil a parameter, as a broken memory does, while there is the file ``diverges``."""
        if (self.faults / "diverges").exists():
            with torch.no_grad():
                self.spare.fill_(torch.nan)


def hanging() -> nn.Module:
    return _Hanging()


def diverging() -> nn.Module:
    return _Diverging()
