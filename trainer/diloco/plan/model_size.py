"""Computes the sizes of a job's fragments from shapes alone, before a model is built and without torch."""

from collections.abc import Iterator
from dataclasses import dataclass

from diloco.core.fragments import TensorSpec, partition
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
        layout = partition(list(gpt_tensors(spec.model.builtin)), count)
        return ModelSize(tuple(fragment.numel for fragment in layout.fragments))
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


def gpt_tensors(builtin: BuiltinModel) -> Iterator[TensorSpec]:
    """The built-in GPT's parameter tensors, in the order in which the module registers them."""
    for name, shape in builtin.shapes():
        yield TensorSpec(name, shape, embedding=name == "embedding.weight")
