"""A run of real processes whose syncer is killed an hour before its next checkpoint: learners bring the model back."""

from pathlib import Path

import pytest

from diloco.syncer.disk.checkpoint_names import checkpoint_names
from tests.support.local_run import LocalRun, write_job
from tests.support.syncer_process import replayed

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

FRAGMENTS = 6
SYNC = {"fragments": FRAGMENTS, "interval": 6, "downlink": "Int8", "leaseSeconds": 10, "maxStalenessSteps": 100_000}


def test_a_killed_syncer_has_its_merges_again_from_its_learners(tmp_path: Path) -> None:
    made = write_job(tmp_path, training={"batchSize": 8}, sync=SYNC, syncer={"checkpointEverySeconds": 3600})
    with LocalRun(made) as job:
        job.all_train()
        before = job.wait_for(lambda status: status.syncer_step >= 5 * FRAGMENTS)
        job.syncer().kill()
        after = job.wait_for(lambda status: status.epoch == 2)
        assert after.recovered is not None
        assert after.recovered.restored >= before.syncer_step - FRAGMENTS
        assert after.recovered.lost <= FRAGMENTS  # versions that no learner had received yet
        assert after.recovered.fragments == FRAGMENTS
        assert after.syncer_step >= after.recovered.restored
        assert after.checkpoint.newest == checkpoint_names(job.output / "syncer" / "checkpoints")[-1] == "000002"
        on = job.wait_for(lambda status: status.syncer_step >= after.syncer_step + FRAGMENTS)
        assert all(one.restarts == 0 for one in on.learners)
        assert on.merged_tokens > before.merged_tokens
        job.interrupt()
    replayed(tmp_path / "out")
