"""A run of real processes whose syncer is killed an hour before its next checkpoint: learners bring the model back."""

from pathlib import Path

import pytest

from diloco.syncer.disk.checkpoint import checkpoint_names
from diloco.syncer.replay import replay
from tests.support.running_job import running_job

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

FRAGMENTS = 6
JOB = f"""
apiVersion: diloco.dev/v1alpha1
kind: DiLoCoJob
metadata: {{name: held}}
spec:
  model: {{builtin: {{preset: pico}}}}
  data: {{text: {{path: TEXT}}}}
  training: {{tokens: 1_000_000_000, sequenceLength: 32, batchSize: 8}}
  sync: {{fragments: {FRAGMENTS}, interval: 6, downlink: DOWNLINK, leaseSeconds: 10, maxStalenessSteps: 100_000}}
  syncer: {{checkpointEverySeconds: 3600}}
  regions:
  - {{name: east, pools: [{{name: fast, learners: 1}}]}}
  - {{name: west, pools: [{{name: old, learners: 1}}]}}
"""


@pytest.mark.parametrize("downlink", ["F32", "Int8"])
def test_a_killed_syncer_has_its_merges_again_from_its_learners(tmp_path: Path, downlink: str) -> None:
    with running_job(tmp_path, JOB.replace("DOWNLINK", downlink)) as job:
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
    report = replay(tmp_path / "out")
    assert report.ok, report.problems
