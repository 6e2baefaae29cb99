"""The inner AdamW: which parameters decay, and its state as named tensors, so that it can be kept without pickle.

It must not know steps of the job, fragments or files.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from diloco.spec.training import InnerOptimizer

_MOMENTS = ("exp_avg", "exp_avg_sq")


class NamedAdamW:
    """torch's AdamW over named parameters. Weight decay is for tensors of two and more dimensions only."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], options: InnerOptimizer) -> None:
        matrices = {name: tensor for name, tensor in parameters.items() if tensor.dim() >= 2}
        others = {name: tensor for name, tensor in parameters.items() if tensor.dim() < 2}
        groups = [
            {"params": list(matrices.values()), "weight_decay": options.weight_decay},
            {"params": list(others.values()), "weight_decay": 0.0},
        ]
        self._names = [*matrices, *others]
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=options.learning_rate,
            betas=(options.beta1, options.beta2),
            eps=options.epsilon,
            fused=True,
        )
        self._steps = 0

    @property
    def steps(self) -> int:
        """Steps made, also before a restart."""
        return self._steps

    def step(self, rate: float) -> None:
        """Update every parameter by its gradient, with learning rate ``rate``; forget the gradients."""
        for group in self._adamw.param_groups:
            group["lr"] = rate
        self._adamw.step()
        self._adamw.zero_grad()
        self._steps += 1

    def zero_grad(self) -> None:
        """Forget the gradients without using them."""
        self._adamw.zero_grad()

    def state(self) -> dict[str, Tensor]:
        """A copy of the moments in host memory, by ``exp_avg.NAME`` and ``exp_avg_sq.NAME``.

        Parameters that have had no gradient yet have none.
        """
        kept = self._adamw.state_dict()["state"]
        return {
            f"{moment}.{name}": kept[index][moment].to("cpu", copy=True)
            for index, name in enumerate(self._names)
            if index in kept
            for moment in _MOMENTS
        }

    def load_state(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Go on from what ``state`` returned after ``steps`` steps.

        Raises:
            KeyError: a moment is missing, or is of a parameter that is not there.
        """
        strangers = {name.partition(".")[2] for name in tensors} - set(self._names)
        if strangers:
            raise KeyError(min(strangers))
        if tensors:
            whole = self._adamw.state_dict()
            whole["state"] = {
                index: {"step": torch.tensor(float(steps))}
                | {moment: tensors[f"{moment}.{name}"] for moment in _MOMENTS}
                for index, name in enumerate(self._names)
                if f"{_MOMENTS[0]}.{name}" in tensors
            }
            self._adamw.load_state_dict(whole)
        self._steps = steps
