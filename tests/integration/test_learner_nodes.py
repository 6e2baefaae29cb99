"""A learner of two nodes, as two processes of this machine, with a real syncer: what starts and ends as one."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from diloco.syncer.disk.checkpoint_names import last_number
from diloco.wire.tls.certificates import Authority
from testbed.kind.waiting import wait_until
from tests.support.learner_process import LearnerProcess, tls_flags
from tests.support.syncer_process import SmallJob, SyncerProcess, serving

pytestmark = pytest.mark.processes


class Pods:
    """Starts the process of a pod, each time in a new directory, unless pods keep theirs."""

    def __init__(
        self, folder: Path, job: SmallJob, syncer: SyncerProcess, authority: Authority, *, keep: bool = False
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            unit = f"--unit=127.0.0.1:{free.getsockname()[1]}"
        tls = tls_flags(authority.learner(job.name, "here/cpu"))
        self._flags = ["--index-of-pod", unit, "--http=127.0.0.1:0", "--stay", *tls]
        self._folder, self._job, self._syncer, self._keep = folder, job, syncer, keep
        self.started: list[LearnerProcess] = []

    def start(self, index: int) -> LearnerProcess:
        folder = self._folder / (f"node-{index}" if self._keep else f"start-{len(self.started)}")
        folder.mkdir(exist_ok=self._keep)
        made = LearnerProcess(
            folder, self._syncer.address, *self._flags, learner=f"here/cpu/{index}", job=self._job.path
        )
        self.started.append(made.__enter__())
        return made

    def await_checkpoint(self, number: int) -> None:
        """Wait until the syncer has written so many."""
        folder = self._syncer.directory / "checkpoints"
        wait_until(lambda: last_number(folder) >= number, f"checkpoint {number}")


@contextmanager
def pods_of(folder: Path, job: SmallJob, *, keep: bool = False) -> Iterator[Pods]:
    authority = Authority(folder)
    server = authority.server(name="small.default.syncer.diloco.internal")
    with serving(job, folder / "syncer", *tls_flags(server)) as syncer:
        made = Pods(folder, job, syncer, authority, keep=keep)
        try:
            yield made
        finally:
            for one in made.started:
                one.__exit__()


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    job = SmallJob(tmp_path, learners=1, nodes=2, tokens=10**9, checkpoint_steps=10**6)
    with pods_of(tmp_path, job) as made:
        yield made


@pytest.fixture
def pods_with_a_loop(tmp_path: Path) -> Iterator[Pods]:
    loop = {"entrypoint": "tests.support.loops_of_several:train", "arguments": {"how": "sharded"}}
    job = SmallJob(tmp_path, learners=1, nodes=2, tokens=10**9, checkpoint_steps=10)
    document = yaml.safe_load(job.path.read_text())
    document["spec"] |= {"model": {"entrypoint": "tests.support.entrypoints:tiny_model"}, "data": {}, "loop": loop}
    document["spec"]["sync"]["fragments"] = 2
    job.path.write_text(yaml.safe_dump(document))
    with pods_of(tmp_path, job, keep=True) as made:
        yield made


def test_a_learner_of_two_nodes_starts_ends_and_stops_as_one(pods: Pods) -> None:
    first, other = pods.start(0), pods.start(1)
    assert "waiting for the other nodes" in page(first, "readyz")
    first.wait_for("loaded the model")
    assert page(other, "readyz") == "following the first node of this learner\n"
    assert page(other, "healthz") == "ok\n"
    pods.await_checkpoint(4)

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


def test_a_loop_on_two_nodes_goes_on_after_a_kill_and_stops_as_one(pods_with_a_loop: Pods) -> None:
    pods = pods_with_a_loop
    first, other = pods.start(0), pods.start(1)
    first.wait_for_file("checkpoints/*/manifest.json")

    other.__exit__()  # kill -9
    assert first.wait() == 0
    assert "ending with the rest of this learner: node 1 " in first.log

    first, other = pods.start(0), pods.start(1)
    first.wait_for("continues from its own checkpoint of step")
    pods.await_checkpoint(4)

    other.terminate()
    assert [first.wait(), other.wait()] == [0, 0]
    assert "is asked to stop (SIGTERM)" in first.log
    assert "Traceback" not in first.log + other.log


def page(of: LearnerProcess, name: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{of.http_address}/{name}") as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return str(error.read().decode())
