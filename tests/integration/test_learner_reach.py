"""A learner process and its way to the syncer: one clear line while there is none, and no restart when there is."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from diloco.runtime.files import write_atomically
from diloco.spec.syncer_name import syncer_name
from diloco.wire.certificates import Authority
from diloco.wire.server import ServerOptions
from tests.support.learner_process import LearnerProcess, make_job
from tests.support.wire_syncer import Keeper, RunningServer

pytestmark = pytest.mark.processes
NAME = syncer_name("small", "default")


class Place:
    """A job's authority and its syncer, which has the fixed name alone."""

    def __init__(self, folder: Path, name: str = NAME) -> None:
        folder.mkdir()
        self.authority = Authority(folder, f"authority of {folder.name}")
        self.keeper = Keeper()
        self.syncer = self.authority.server("syncer", name)
        self.server = RunningServer(self.keeper, ServerOptions("127.0.0.1:0", tls=self.syncer, job="small"))

    @property
    def flags(self) -> list[str]:
        tls = self.authority.learner("small", "here/cpu")
        return [f"--tls-ca={tls.ca}", f"--tls-cert={tls.certificate}", f"--tls-key={tls.key}"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path / "tls")
    with made.server:
        yield made


def test_it_waits_for_its_address_and_names_one_that_is_wrong(place: Place, tmp_path: Path) -> None:
    make_job(tmp_path)
    file = tmp_path / "endpoint"
    other = Place(tmp_path / "other", syncer_name("other", "default"))
    with other.server, LearnerProcess(tmp_path, file, *place.flags) as learner:
        learner.wait_for(f"cannot reach the syncer yet ({file}: is missing; waiting for the address); retrying")
        write_atomically(file, f"{other.server.address}\n")
        learner.wait_for(
            f"({other.server.address}: leads to the syncer of job other in namespace default; this learner"
        )
        write_atomically(file, f"{place.server.address}\n")
        assert place.keeper.joined.wait(60)
        assert learner.log.count("retrying") == 2
    assert not other.keeper.joined.is_set()
