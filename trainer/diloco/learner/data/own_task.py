"""A task of the user's own (``spec.task``). Whatever is wrong with it is one line that says what is allowed."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from diloco.learner.data.own_code import OwnCode
from diloco.learner.data.source import DataError
from diloco.learner.data.task import JobTask, Task, Total
from diloco.model.entrypoint import EntrypointError, call_entrypoint
from diloco.spec.training import TaskSpec

_FIELD: Final = "task.entrypoint"


def own_task(spec: TaskSpec) -> JobTask:
    """The task that the manifest names.

    Raises:
        DataError: it cannot be loaded, or is no task.
    """
    try:
        made = call_entrypoint(spec.entrypoint, spec.arguments, _FIELD)
    except EntrypointError as error:
        raise DataError(str(error)) from error
    if not isinstance(made, Task):
        text = f"returned a {type(made).__name__}; a task has __len__(), batch(numbers) and loss(module, batch)"
        raise DataError(f"{_FIELD}: {spec.entrypoint} {text}")
    return _OwnTask(made, spec.entrypoint)


class _OwnTask(JobTask):
    field = _FIELD
    examples = "examples"
    unit = "on average"

    def __init__(self, task: Task, entrypoint: str) -> None:
        self._task: Any = task
        self._code = OwnCode(_FIELD, entrypoint)
        self._length: int = self._code.call("__len__", len, task)

    def __len__(self) -> int:
        return self._length

    def batch(self, numbers: NDArray[np.int64]) -> Mapping[str, Tensor]:
        made = self._code.call("batch", self._task.batch, numbers)
        if not isinstance(made, Mapping) or not made:
            raise self.mistake(f"its batch is {_described(made)}; return a mapping of names to tensors")
        for name, tensor in made.items():
            if not isinstance(tensor, Tensor):
                raise self.mistake(f"{name!r} in its batch is {_described(tensor)}; return tensors")
        return made

    def loss(self, module: nn.Module, batch: Mapping[str, Tensor]) -> Total:
        total = self._total("loss", self._code.call("loss", self._task.loss, module, batch))
        if not isinstance(total.summed, Tensor) or not total.summed.is_floating_point():
            raise self.mistake(f"the sum of its loss is {_described(total.summed)}; return a floating-point tensor")
        return total

    def metrics(self, module: nn.Module, batch: Mapping[str, Tensor]) -> Mapping[str, Total]:
        if not hasattr(self._task, "metrics"):
            return {}
        made = self._code.call("metrics", self._task.metrics, module, batch)
        if not isinstance(made, Mapping):
            raise self.mistake(f"its metrics are {_described(made)}; return a mapping of names to (sum, count)")
        return {str(name): self._total(f"metric {name}", pair) for name, pair in made.items()}

    def optimizer(self, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer | None:
        if not hasattr(self._task, "optimizer"):
            return None
        made = self._code.call("optimizer", self._task.optimizer, parameters)
        if not isinstance(made, torch.optim.Optimizer):
            raise self.mistake(f"its optimizer is {_described(made)}; return a torch.optim.Optimizer")
        return made

    def mistake(self, text: str) -> DataError:
        return self._code.mistake(text)

    def _total(self, what: str, made: object) -> Total:
        pair = made if isinstance(made, tuple) else ()
        if len(pair) != 2 or not all(_is_number(one) for one in pair):
            raise self.mistake(
                f"its {what} is {_described(made)}; return (sum, count), each a number or a scalar tensor"
            )
        return Total(*pair)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or (isinstance(value, Tensor) and value.dim() == 0)


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple):
        return f"({', '.join(_described(one) for one in value)})"
    return f"an empty {type(value).__name__}" if isinstance(value, dict) and not value else f"a {type(value).__name__}"
