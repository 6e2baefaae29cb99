"""A real syncer that is attacked, and must serve its learner afterwards as before."""

import re
from collections.abc import Iterator

import psutil
import pytest

from diloco.wire.errors import UnavailableError
from diloco.wire.messages import Welcome
from testbed.kind.waiting import wait_until
from tests.support.attacks import Aim
from tests.support.scripted_learner import ScriptedLearner
from tests.support.syncer_process import SmallJob, SyncerProcess


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One that fails is not run again: an attack that succeeds at times succeeds."""
    for item in items:
        if "tests/hostile/" in item.nodeid:
            item.add_marker(pytest.mark.flaky(reruns=0))


class Target:
    """A syncer under attack, as its owner sees it."""

    def __init__(self, job: SmallJob, syncer: SyncerProcess) -> None:
        self.job = job
        self.syncer = syncer
        self._honest = 0
        self.process = psutil.Process(syncer.pid)
        self.born_bytes = self.process.memory_info().rss
        """Memory before anything happened to it: what was held once may stay with the process."""

    @property
    def address(self) -> str:
        return self.syncer.address

    @property
    def aim(self) -> Aim:
        return Aim(self.address, self.syncer.http_address, self.job)

    def learner(self, index: int = 0, instance: str = "") -> ScriptedLearner:
        return ScriptedLearner(self.address, self.job, f"here/cpu/{index}", instance)

    def metric(self, name: str) -> float:
        found = re.search(rf"^{name} (\S+)$", self.syncer.page("/metrics"), re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    def serves_as_before(self) -> None:
        """Check that it is healthy, admits a learner, sends it the model, and has logged no traceback."""
        assert "event loop lag" in self.syncer.page("/healthz")
        self._honest += 1
        with self.learner(1, f"honest {self._honest}") as honest:
            wait_until(lambda: self._serves(honest))
        assert "Traceback" not in self.syncer.log

    @staticmethod
    def _serves(honest: ScriptedLearner) -> bool:
        """Whether this attempt succeeds: a learner that is refused for now retries."""
        try:
            assert isinstance(honest.join(), Welcome)
            assert honest.pull(0, 0).payload_bytes > 0
        except UnavailableError:
            return False
        return True


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """One syncer for all tests of a module, so that what one test leaves behind affects the next."""
    folder = tmp_path_factory.mktemp("hostile")
    job = SmallJob(folder)
    with SyncerProcess(job, folder / "state") as syncer:
        yield Target(job, syncer.serving())
        assert syncer.terminate() == 0
        assert "Traceback" not in syncer.log
