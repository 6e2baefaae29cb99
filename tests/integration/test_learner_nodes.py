"""A learner of two nodes, as two processes of this machine, with a real syncer: one starts and ends with the other."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.learner_process import LearnerProcess
from tests.support.syncer_process import SmallJob, SyncerProcess, serving

pytestmark = pytest.mark.processes

POD_SECONDS = 2.0


class Pods:
    """Both nodes' processes."""

    def __init__(self, folder: Path, job: SmallJob, syncer: SyncerProcess) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._unit = f"127.0.0.1:{free.getsockname()[1]}"
        self._folder, self._job, self._syncer = folder, job, syncer
        self.running: list[LearnerProcess] = []

    def start(self, number: int) -> LearnerProcess:
        folder = self._folder / f"pod{number}-{len(self.running)}"
        folder.mkdir()
        flags = ["--index-of-pod", f"--unit={self._unit}", "--http=127.0.0.1:0", "--stay"]
        made = LearnerProcess(folder, self._syncer.address, *flags, learner=f"here/cpu/{number}", job=self._job.path)
        self.running.append(made.__enter__())
        return made


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    job = SmallJob(tmp_path, learners=1, nodes=2, tokens=10**9)
    with serving(job, tmp_path / "syncer") as syncer:
        made = Pods(tmp_path, job, syncer)
        yield made
        for one in made.running:
            one.__exit__()


def test_smoke(pods: Pods) -> None:
    one = pods.start(1)
    zero = pods.start(0)
    try:
        zero.wait_for("loaded the model")
        zero.wait_for("no such")
    finally:
        print(zero.log, one.log, pods._syncer.log[-3000:])
