"""A learner of two nodes, as two processes of this machine, with a real syncer: what starts and ends as one."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from diloco.wire.tls.certificates import Authority
from tests.support.learner_process import LearnerProcess, tls_flags
from tests.support.syncer_process import SmallJob, SyncerProcess, serving

pytestmark = pytest.mark.processes


class Pods:
    """Starts the process of a pod, each time in a new directory."""

    def __init__(self, folder: Path, job: SmallJob, syncer: SyncerProcess, authority: Authority) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            unit = f"--unit=127.0.0.1:{free.getsockname()[1]}"
        tls = tls_flags(authority.learner(job.name, "here/cpu"))
        self._flags = ["--index-of-pod", unit, "--http=127.0.0.1:0", "--stay", *tls]
        self._folder, self._job, self._syncer = folder, job, syncer
        self.started: list[LearnerProcess] = []

    def start(self, index: int) -> LearnerProcess:
        folder = self._folder / f"start-{len(self.started)}"
        folder.mkdir()
        made = LearnerProcess(
            folder, self._syncer.address, *self._flags, learner=f"here/cpu/{index}", job=self._job.path
        )
        self.started.append(made.__enter__())
        return made


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    job = SmallJob(tmp_path, learners=1, nodes=2, tokens=10**9, checkpoint_steps=10**6)
    authority = Authority(tmp_path)
    server = authority.server(name="small.default.syncer.diloco.internal")
    with serving(job, tmp_path / "syncer", *tls_flags(server)) as syncer:
        made = Pods(tmp_path, job, syncer, authority)
        yield made
        for one in made.started:
            one.__exit__()


def test_a_learner_of_two_nodes_starts_ends_and_stops_as_one(pods: Pods) -> None:
    first, other = pods.start(0), pods.start(1)
    assert "waiting for the other nodes" in page(first, "readyz")
    first.wait_for("loaded the model")
    assert page(other, "readyz") == "following the first node of this learner\n"
    assert page(other, "healthz") == "ok\n"
    pods._syncer.wait_for("checkpoint 000004")

    other.__exit__()  # kill -9
    assert first.wait() == 0
    assert "ending with the rest of this learner: node 1 " in first.log
    assert "Traceback" not in first.log

    other = pods.start(1)
    other.wait_for("waiting for the learner's first node, ")
    first = pods.start(0)
    first.wait_for("loaded the model")

    other.terminate()
    assert first.wait() == 0
    assert "is asked to stop (SIGTERM)" in first.log
    assert "wrote a checkpoint" in first.log
    assert other.wait() == 0
    assert "error" not in other.log


def page(of: LearnerProcess, name: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{of.http_address}/{name}") as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return str(error.read().decode())
