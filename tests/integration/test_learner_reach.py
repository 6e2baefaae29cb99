"""A learner process and its way to the syncer: one clear line while there is none, and no restart when there is."""

from pathlib import Path

import pytest

from diloco.runtime.files import write_atomically
from tests.support.learner_process import LearnerProcess, make_job, tls_flags
from tests.support.wire_place import Place

pytestmark = pytest.mark.processes


def test_it_waits_for_its_address_and_names_one_that_is_wrong(tmp_path: Path) -> None:
    make_job(tmp_path)
    file = tmp_path / "endpoint"
    place = Place(tmp_path / "tls", "small", "default", "here/cpu")
    other = Place(tmp_path / "other", "other", "default")
    with place.server, other.server, LearnerProcess(tmp_path, file, *tls_flags(place.learner)) as learner:
        learner.wait_for(f"cannot reach the syncer yet ({file}: is missing; waiting for the address); retrying")
        write_atomically(file, f"{other.server.address}\n")
        learner.wait_for(
            f"({other.server.address}: leads to the syncer of job other in namespace default; this learner"
        )
        write_atomically(file, f"{place.server.address}\n")
        assert place.keeper.joined.wait(60)
        assert learner.log.count("retrying") == 2
    assert not other.keeper.joined.is_set()
