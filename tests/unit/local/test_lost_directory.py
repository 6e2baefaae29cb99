"""If a syncer's directory was removed, the training does not silently start over."""

from pathlib import Path

import pytest

from diloco.local.directory import RunDirectoryError, begin, resume
from diloco.spec import parse_job
from tests.support.local_run import JOB

TEXT = JOB.replace("TOKENS", "1000")


def test_a_run_that_has_trained_is_not_resumed_without_the_global_model(tmp_path: Path) -> None:
    directory = begin(tmp_path, TEXT, overwrite=False)
    job = parse_job(TEXT, "job")
    resume(tmp_path, TEXT, job)  # interrupted before anything was trained
    (directory.learner("west/old/0") / "checkpoints" / "step-00000020").mkdir(parents=True)
    with pytest.raises(RunDirectoryError, match=r"syncer has no checkpoint although learners have trained"):
        resume(tmp_path, TEXT, job)
    (directory.syncer / "checkpoints" / "000004").mkdir(parents=True)
    assert resume(tmp_path, TEXT, job) == directory
