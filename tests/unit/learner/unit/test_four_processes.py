"""A learner of four processes, the last of which have fewer rows of a tensor, or none, trains as one process does."""

from pathlib import Path

import pytest

from testbed.units import unit_of
from tests.support.units import check_alike, job_of, write_documents

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view")


@pytest.mark.slow
def test_four_processes_train_as_one(tmp_path: Path) -> None:
    text = write_documents(tmp_path / "text")
    with unit_of(4, tmp_path) as four:
        for parallelism in ("FSDP", "DDP"):
            job = job_of(text, sync={"fragments": 12}, training={"batchSize": 8})
            check_alike(four, job, parallelism)
