"""Four processes train as one does, however they hold the model; some have fewer rows of a tensor, or none."""

from pathlib import Path
from typing import Any

import pytest

from testbed.units import StartedUnit
from tests.support.units import alone, check_alike, job_of

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view")


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("parallelism", "micro"),
    [
        *(("FSDP", 1), ("HSDP", None), ("DDP", 1)),
        *(pytest.param(*one, marks=SLOW) for one in (("FSDP", None), ("HSDP", 1), ("DDP", None))),
    ],
)
def test_four_processes_train_as_one(four: StartedUnit, text: Path, parallelism: str, micro: int | None) -> None:
    training: dict[str, Any] = {"batchSize": 8, "microBatchSize": micro}
    check_alike(four, job_of(text, sync={"fragments": 12}, training=training), parallelism)


@pytest.mark.parametrize("parallelism", [pytest.param("FSDP", marks=SLOW), "HSDP", "DDP"])
def test_a_first_step_of_muon_is_that_of_one_process(four: StartedUnit, text: Path, parallelism: str) -> None:
    muon = {"batchSize": 8, "optimizer": {"type": "Muon", "clipNorm": 0}}
    one = alone(job := job_of(text, training=muon))
    one.step(0.0)
    with four.trainer(job, parallelism) as trainer:
        trainer.step(0.0)
        for fragment in range(4):
            made, wanted = trainer.capture(fragment).delta, one.capture(fragment).delta
            assert float((made - wanted).norm()) < 0.01 * float(wanted.norm())
