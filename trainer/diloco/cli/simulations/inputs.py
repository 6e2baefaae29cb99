"""What ``diloco simulate`` simulates: a job, its world, the size of its model, and the run made of them."""

from dataclasses import dataclass
from pathlib import Path

from diloco.cli.manifests.plan_model import model_of
from diloco.core.fragments import Layout
from diloco.plan import PlanError
from diloco.plan.model_size import ModelSize, model_size
from diloco.simulate.training.counted import counted_work, layout_of_sizes
from diloco.simulate.training.work import Work
from diloco.spec import DiLoCoJob
from diloco.world.model import World


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arguments that decide the result."""

    job: DiLoCoJob
    world: World
    parameters: str | None
    """``--parameters``."""
    folder: Path | None
    """``--hf``."""
    seed: int
    limit_seconds: float | None
    """Virtual time to simulate; None: to the end."""
    train: bool

    def __post_init__(self) -> None:
        """Refuse two models.

        Raises:
            PlanError: with ``--train`` there is also a model that is not trained.
        """
        flag = "--parameters" if self.parameters is not None else "--hf"
        if self.train and (self.parameters is not None or self.folder is not None):
            raise PlanError(f"{flag}: cannot be used with --train, which trains the model of the job; remove one")

    def size(self) -> ModelSize:
        """The fragments of the model.

        Raises:
            PlanError, LayoutError: they cannot be found.
        """
        numels, _ = model_of(self.job.spec, self.parameters, self.folder, passes=False)
        return model_size(self.job.spec, numels)

    def work(self, size: ModelSize) -> tuple[Layout, Work]:
        """The training of the run, and the layout of its model.

        Raises:
            ModelError, DataError: with ``--train``, the job's model or data cannot be used.
        """
        if self.train:
            from diloco.simulate.training.tensors import tensor_work

            return tensor_work(self.job.spec)
        layout = layout_of_sizes(size.numels)
        return layout, counted_work(self.job.spec, layout)
