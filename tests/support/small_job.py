"""A job that is small enough for a unit test to train, on text that the test has written."""

from pathlib import Path
from typing import Any

from diloco.spec import DiLoCoJob, JobSpec
from diloco.spec.job import Metadata


def small_job(text: Path | None = None, learners: int = 2, **changes: Any) -> JobSpec:
    """A pico job on ``text``: sequences of 16 tokens, 4 a batch. ``changes`` replace whole fields of the spec."""
    plain: dict[str, Any] = {
        "model": {"builtin": {"preset": "pico"}},
        "data": {"text": {"path": str(text)} if text else {}, "holdoutFraction": 0.1},
        "training": {
            "tokens": 100_000,
            "sequenceLength": 16,
            "batchSize": 4,
            "optimizer": {"learningRate": 3e-3, "warmupSteps": 4},
            "evaluation": {"sequences": 6},
        },
        "sync": {"fragments": 6, "interval": 6},
        "regions": [{"name": "here", "pools": [{"name": "cpu", "learners": learners}]}],
    }
    return JobSpec.model_validate(plain | changes)


def named_job(name: str, spec: JobSpec) -> DiLoCoJob:
    return DiLoCoJob(api_version="diloco.dev/v1alpha1", kind="DiLoCoJob", metadata=Metadata(name=name), spec=spec)


def write_text(folder: Path, lines: int = 400) -> Path:
    """A text file with some structure to be learnt."""
    path = folder / "text.txt"
    path.write_text("".join(f"line {number % 17} says {'ab' * (number % 5)}\n" for number in range(lines)))
    return path
