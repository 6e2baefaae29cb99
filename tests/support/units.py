"""Jobs for learners of several processes, and whether they train as one process does."""

from pathlib import Path
from typing import Any, Final

import pytest

from diloco.learner.training.trainer import InnerTrainer
from diloco.spec import JobSpec
from testbed.units import StartedUnit, Unit, of_one
from tests.support.small_job import small_job
from tests.support.small_learner import trainer_of

TRAINING: Final[dict[str, Any]] = {
    "tokens": 100_000,
    "sequenceLength": 16,
    "batchSize": 6,
    "optimizer": {"learningRate": 3e-3, "warmupSteps": 4},
    "evaluation": {"sequences": 7},
}


def alone(job: JobSpec) -> InnerTrainer:
    """The trainer of the job's learner, if it is one process."""
    return trainer_of(JobSpec.model_validate(of_one(job, {})))


def trained(trainer: InnerTrainer, steps: int, every: int = 2) -> dict[str, list[Any]]:
    """What comes of some steps, with a fragment handed in and received after ``every`` of them, and evaluations."""
    seen: dict[str, list[Any]] = {"losses": [], "norms": [], "deltas": [], "means": [], "received": []}
    for step in range(steps):
        made = trainer.step(step / steps)
        seen["losses"].append(made.loss)
        seen["norms"].append(made.grad_norm)
        if step % every == every - 1:
            fragment = step // every % len(trainer.layout.fragments)
            capture = trainer.capture(fragment)
            values = capture._anchor - 0.7 * capture.delta
            seen["deltas"].append(capture.delta)
            trainer.apply(fragment, step, values)
            seen["received"].append(not trainer.capture(fragment).delta.any())
            seen["means"].append((trainer.evaluate(), dict(trainer.metrics)))
    return seen


def write_documents(folder: Path) -> Path:
    """The folder, with documents of several lengths."""
    folder.mkdir(exist_ok=True)
    for number in range(100):
        (folder / f"{number}.txt").write_text("ab" * (1 + number * 7 % 13))
    return folder


def job_of(text: Path, *, mask: bool = False, training: dict[str, Any] | None = None, **changes: Any) -> JobSpec:
    data = {"text": {"path": str(text)}, "holdoutFraction": 0.1, "documentMask": mask}
    if "task" in changes:
        data = {"holdoutFraction": 0.1}
    plain = {"data": data, "training": TRAINING | (training or {}), "sync": {"fragments": 4}} | changes
    return small_job(None, 1, **plain)


def check_alike(unit: Unit | StartedUnit, job: JobSpec, parallelism: str = "FSDP") -> None:
    """The same losses, norms, outer gradients and evaluations, and what is received is there as it was sent.

    Adam's steps, of 3e-3 here, make much of rounding where a gradient is near 0: up to a three-hundredth of a step.
    """
    wanted = trained(alone(job), 8)
    with unit.trainer(job, parallelism) as trainer:
        made = trained(trainer, 8)
    assert all(made["received"])
    for one, other in zip(made["deltas"], wanted["deltas"], strict=True):
        assert float((one - other).abs().max()) < 1e-5
    for what in ("losses", "norms"):
        assert made[what] == pytest.approx(wanted[what], rel=1e-5)
    for (mean, metrics), (other_mean, others) in zip(made["means"], wanted["means"], strict=True):
        assert mean == pytest.approx(other_mean, rel=1e-5)
        assert metrics == pytest.approx(others, rel=1e-5)
