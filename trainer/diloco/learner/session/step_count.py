"""Counts the steps of a loop's optimizers by their own hooks: a framework may call a session more or less often."""

from collections.abc import Sequence

import torch


class StepCount:
    """Steps since the last `take`."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._counts = [_Count(one) for one in optimizers]

    def take(self) -> int:
        """Steps made since the last call: the most of any optimizer. Call it while none makes one."""
        return max([one.take() for one in self._counts])


class _Count:
    """Of one optimizer. A subclass's ``step()`` may call that of its base, whose hooks are the same."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._made = self._inside = 0
        optimizer.register_step_pre_hook(self._begins)
        optimizer.register_step_post_hook(self._ends)

    def take(self) -> int:
        made, self._made, self._inside = self._made, 0, 0  # one that raised has begun and not ended
        return made

    def _begins(self, *_: object) -> None:
        self._inside += 1

    def _ends(self, *_: object) -> None:
        self._inside -= 1
        self._made += self._inside == 0
