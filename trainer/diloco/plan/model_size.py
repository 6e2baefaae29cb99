"""Computes the sizes of a job's fragments from shapes alone, before a model is built and without torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from diloco.core.fragments import Layout, TensorSpec, partition
from diloco.plan import PlanError
from diloco.spec import JobSpec
from diloco.spec.training import BuiltinModel

MAXIMUM_PARAMETERS = 10**15


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The fragments of a model."""

    numels: tuple[int, ...]
    assumed: str = ""
    """What had to be assumed, as text; empty: nothing."""

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return sum(self.numels)

    @property
    def unevenness(self) -> float:
        """The largest fragment over the mean one."""
        return max(self.numels) * len(self.numels) / self.parameters


def model_size(spec: JobSpec, given: int | Sequence[int] | None) -> ModelSize:
    """The fragments of the job's model.

    ``given``, unless it is the built-in one: the parameters of each fragment, or the number of all (`--parameters`).

    Raises:
        PlanError: the size is given and known, or there are fewer parameters than fragments, or too many.
        LayoutError: the built-in model has fewer tensors than fragments are wanted.
    """
    count = spec.sync.fragments
    if spec.model.builtin is not None:
        if given is not None:
            flag = f"--parameters: {given}" if isinstance(given, int) else "--hf:"
            raise PlanError(f"{flag} is not needed: the size of the built-in model is known; remove it")
        return ModelSize(gpt_layout(spec.model.builtin, count).numels)
    assert given is not None, "only the built-in model's size is known without a model"
    if not isinstance(given, int):
        return ModelSize(tuple(given))
    if not count <= given <= MAXIMUM_PARAMETERS:
        raise PlanError(
            f"--parameters: {given} is not from {count}, one for each fragment, to {MAXIMUM_PARAMETERS}; "
            "use the number of trained parameters"
        )
    share, more = divmod(given, count)
    return ModelSize(tuple(share + (index < more) for index in range(count)), "fragments of equal size (--parameters)")


def gpt_layout(builtin: BuiltinModel, count: int) -> Layout:
    """The layout of the built-in GPT, by its shapes."""
    tensors = [TensorSpec(name, shape, embedding=name == "embedding.weight") for name, shape in builtin.shapes()]
    return partition(tensors, count, output="output.weight")
