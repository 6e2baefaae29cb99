"""One class for each experiment tracker. Its package is loaded when the tracker is opened."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

from diloco.spec.tracking import MLflow, Tracker, TrackerName, WeightsAndBiases
from diloco.syncer.errors import SyncerError

PACKAGES: Final[Mapping[TrackerName, str]] = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
_MOST_AT_ONCE: Final = 1000
"""Values that an MLflow server takes in one request."""
_TAG: Final = "diloco.training"
"""Of an MLflow run: the id of its training."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker calls a job."""

    name: str
    training: str
    """Id of the training: a restarted syncer goes on with the same run, another training has its own."""
    folder: Path
    """Where files may be written."""


class OpenTracker(Protocol):
    """A tracker that takes values. Any method may raise anything, or take minutes."""

    last: int | None
    """The step of the last values that it has, -1: none; None: it cannot tell."""

    def log(self, step: int, unix_seconds: float, values: Mapping[str, float]) -> None:
        """Take the values of a step, which is above all earlier ones."""

    def flush(self) -> None:
        """Return once what was logged is where it cannot be lost."""

    def close(self, *, over: bool) -> None:
        """``over``: the job is, and no other process will go on with the run."""


class EventFiles:
    """TensorBoard's event files."""

    last: int | None = None

    def __init__(self, folder: Path, after: int) -> None:
        """Of what an earlier process may have written beyond the step ``after``, TensorBoard shows nothing."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=after + 1)

    def log(self, step: int, unix_seconds: float, values: Mapping[str, float]) -> None:
        """See ``OpenTracker``."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, unix_seconds)

    def flush(self) -> None:
        """See ``OpenTracker``."""
        self._writer.flush()

    def close(self, *, over: bool) -> None:  # noqa: ARG002 - files have no end
        """See ``OpenTracker``."""
        self._writer.close()


class WandbRun:
    """A run of Weights & Biases, which sends in a process of its own."""

    def __init__(self, options: WeightsAndBiases, run: TrackedRun) -> None:
        """Continue the training's run, or begin it."""
        import wandb

        self._teardown = wandb.teardown
        # No source code, no packages, no console, nothing of the machine: the curves alone leave it.
        settings = wandb.Settings(
            host="-",
            program="-",
            x_disable_meta=True,
            console="off",
            disable_code=True,
            disable_git=True,
            x_disable_stats=True,
            x_save_requirements=False,
            silent=True,
        )
        self._run = wandb.init(
            project=options.project,
            entity=options.entity,
            dir=str(run.folder),
            id=run.training,
            name=run.name,
            resume="allow",
            settings=settings,
        )
        self._run.define_metric("*", step_metric="merged_tokens")
        # What the server has: what was logged, and lost with a process before it was sent, is logged again.
        self.last = None if self._run.offline else self._run.starting_step - 1

    def log(self, step: int, unix_seconds: float, values: Mapping[str, float]) -> None:
        """See ``OpenTracker``."""
        self._run.log({**values, "merged_tokens": step, "_timestamp": unix_seconds}, step=step)

    def flush(self) -> None:
        """See ``OpenTracker``. What was logged is in a file that the other process sends."""

    def close(self, *, over: bool) -> None:  # noqa: ARG002 - a finished run can be continued
        """See ``OpenTracker``."""
        self._run.finish()
        self._teardown()  # ends its process


class MLflowRun:
    """A run of MLflow."""

    def __init__(self, options: MLflow, run: TrackedRun) -> None:
        """Continue the training's run, or begin it."""
        # Its own retries take seven minutes, in which a job that ends would wait.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric, self._client = Metric, MlflowClient(tracking_uri=options.uri)
        found = self._client.get_experiment_by_name(options.experiment)
        self._experiment: str = (
            self._client.create_experiment(options.experiment) if found is None else found.experiment_id
        )
        runs: Any = self._client.search_runs([self._experiment], f"tags.`{_TAG}` = '{run.training}'", max_results=1)
        if runs:
            self._id: str = runs[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            tags = {_TAG: run.training}
            self._id = self._client.create_run(self._experiment, tags=tags, run_name=run.name).info.run_id
        history = self._client.get_metric_history(self._id, "merged_tokens")
        self.last = max((one.step for one in history), default=-1)

    def log(self, step: int, unix_seconds: float, values: Mapping[str, float]) -> None:
        """See ``OpenTracker``. ``merged_tokens`` comes last: it says that the step is complete."""
        at = int(unix_seconds * 1000)
        metrics = [self._metric(name, value, at, step) for name, value in values.items()]
        metrics.append(self._metric("merged_tokens", float(step), at, step))
        for begin in range(0, len(metrics), _MOST_AT_ONCE):
            self._client.log_batch(self._id, metrics[begin : begin + _MOST_AT_ONCE])

    def flush(self) -> None:
        """See ``OpenTracker``."""

    def close(self, *, over: bool) -> None:
        """See ``OpenTracker``."""
        if over:
            self._client.set_terminated(self._id)


def opened(tracker: Tracker, run: TrackedRun, after: int) -> OpenTracker:
    """The tracker, ready for steps above ``after``. Raises whatever its package does, and may take minutes."""
    if tracker.wandb is not None:
        return WandbRun(tracker.wandb, run)
    if tracker.mlflow is not None:
        return MLflowRun(tracker.mlflow, run)
    assert tracker.tensorboard is not None
    return EventFiles(Path(tracker.tensorboard.folder or run.folder / "tensorboard"), after)


def check_packages(trackers: tuple[Tracker, ...]) -> None:
    """Refuse trackers that this process cannot use.

    Raises:
        SyncerError: The package of one is not here.
    """
    for index, tracker in enumerate(trackers):
        if find_spec(PACKAGES[tracker.name]) is None:
            field = f"spec.training.tracking[{index}].{tracker.name}"
            package = "mlflow-skinny" if tracker.name == "mlflow" else PACKAGES[tracker.name]
            raise SyncerError(f"{field}: needs the package {package}; install it where the syncer runs")
