"""A syncer with few file descriptors, and peers that try to take all of them."""

import resource
import shutil
from pathlib import Path

import pytest

from tests.support.attacks import idle_connections
from tests.support.syncer_process import SmallJob, serving

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def _many_for_the_attacker() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip(f"the attacker needs 2000 descriptors, this user has {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2000 if hard == resource.RLIM_INFINITY else hard, hard))


def test_connections_leave_descriptors_for_health_checks_and_checkpoints(tmp_path: Path) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    limited = (shell, "-c", 'ulimit -n 1024; exec "$0" "$@"')
    job = SmallJob(tmp_path)
    with serving(job, tmp_path / "state", before=limited) as syncer:
        with idle_connections(syncer.address, 1300) as held:
            assert len(held) > 1024  # the system accepts them, even if the syncer then closes them
            assert "event loop lag" in syncer.page("/healthz")
        assert syncer.terminate() == 0
        assert "the syncer stops" in syncer.log
        assert "cannot be written" not in syncer.log
        assert "could not be written" not in syncer.log
