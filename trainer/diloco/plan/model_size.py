"""Computes the sizes of a job's fragments from shapes alone, before a model is built and without torch."""

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


def model_size(spec: JobSpec, parameters: int | None) -> ModelSize:
    """The fragments of the job's model. ``parameters``: number of parameters of a model from an entrypoint.

    Raises:
        PlanError: the size is needed and not given, or given and known; or there are fewer parameters than fragments.
        LayoutError: the built-in model has fewer tensors than fragments are wanted.
    """
    count = spec.sync.fragments
    if spec.model.builtin is not None:
        if parameters is not None:
            raise PlanError(
                f"--parameters: {parameters} is not needed: the size of the built-in model is known; remove it"
            )
        return ModelSize(gpt_layout(spec.model.builtin, count).numels)
    if parameters is None:
        raise PlanError(
            f"--parameters: is missing, and the size of a model from the entrypoint {spec.model.entrypoint} is not "
            "known; use the number of its trained parameters, such as --parameters 1.3B"
        )
    if not count <= parameters <= MAXIMUM_PARAMETERS:
        raise PlanError(
            f"--parameters: {parameters} is not from {count}, one for each fragment, to {MAXIMUM_PARAMETERS}; "
            "use the number of trained parameters"
        )
    share, more = divmod(parameters, count)
    numels = tuple(share + (index < more) for index in range(count))
    return ModelSize(numels, "fragments of equal size; a large embedding makes one of them larger")


def gpt_layout(builtin: BuiltinModel, count: int) -> Layout:
    """The layout of the built-in GPT, by its shapes."""
    tensors = [TensorSpec(name, shape, embedding=name == "embedding.weight") for name, shape in builtin.shapes()]
    return partition(tensors, count, output="output.weight")
