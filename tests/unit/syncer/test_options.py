"""What a syncer does where nobody asked for anything."""

from pathlib import Path

from diloco.syncer.options import SyncerOptions
from diloco_operator.manifests import syncer
from tests.support.syncer_process import SmallJob


def test_it_waits_twice_as_long_as_its_pod_may_take_to_end(tmp_path: Path) -> None:
    assert SyncerOptions(SmallJob(tmp_path).job, tmp_path).lock_patience_seconds == 2 * syncer.GRACE_SECONDS
