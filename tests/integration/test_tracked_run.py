"""A run whose curves go to trackers while it trains: one that works, and one that nobody can reach."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from diloco.syncer.tracking.curve_reader import CurveReader
from tests.support.local_run import LocalRun, write_job

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

TRACKERS = [{"tensorboard": {}}, {"mlflow": {"uri": "http://127.0.0.1:9", "experiment": "e"}}]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_point_is_twice_and_an_unreachable_tracker_stops_nothing(tmp_path: Path) -> None:
    training = {"batchSize": 8, "tokens": 200_000, "tracking": TRACKERS}
    job = write_job(tmp_path, training=training, syncer={"checkpointEverySeconds": 1})
    with LocalRun(job) as run:
        board = run.output / "syncer" / "tensorboard"
        run.wait_until(lambda: board.is_dir() and run.merging())
        before = run.wait_for(lambda status: any(one.tokens for one in status.trackers))
        away = run.wait_for(lambda status: status.trackers[1].problem)
        assert "127.0.0.1" in away.trackers[1].problem
        run.syncer().kill()
        run.wait_for(lambda status: status.epoch > before.epoch)
        done = run.ended()
    assert done.returncode == 0, done.stderr
    shown = [one.step for one in EventAccumulator(str(board)).Reload().Scalars("job/tokens_per_second")]
    assert shown == sorted(set(shown))
    written = {int(row.merged_tokens) for row in CurveReader(run.output / "syncer" / "curves.jsonl").rows()}
    assert set(shown) <= written
    assert max(shown) == max(written)
    assert "mlflow: takes no curves" in run.log("syncer")
