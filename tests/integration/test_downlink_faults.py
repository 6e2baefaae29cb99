"""kill -9 in the middle of sending an update: afterwards all learners hold the syncer's bits, to the end."""

import socket
import threading
from pathlib import Path

import pytest

from diloco.core.engine.events import Merged
from diloco.learner.exchange.orders import EndKind
from diloco.runtime.process.exits import EXIT_OK
from diloco.tape.reader import TapeReader, Torn
from diloco.tape.segments import find_tapes
from tests.integration.learner_thread import LearnerThread
from tests.support.learner_process import LearnerProcess
from tests.support.syncer_process import SmallJob, SyncerProcess, replayed, serving
from tests.support.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

WAIT_SECONDS = 120.0
FAR, NEAR = "here/cpu/0", "here/cpu/1"
"""The one behind the relay, and the other."""


@pytest.fixture
def address() -> str:
    """An address that stays the same when the syncer is restarted."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def small_job(folder: Path, tokens: int = 100_000_000) -> SmallJob:
    # An update that is held back counts as in flight for as long as a lease.
    return SmallJob(folder, downlink="Int8", tokens=tokens, lease_seconds=10)


def half_an_update(job: SmallJob) -> int:
    """A number of bytes above that of control messages in that time, and below the smallest update."""
    smallest = min(fragment.numel for fragment in job.layout.fragments)
    return smallest // 2


def pulls(syncer: SyncerProcess, payload: str) -> int:
    """Number of pulls that it has answered, whole or with an update."""
    lines = syncer.page("/metrics").splitlines()
    wanted = f'diloco_pulls_total{{payload="{payload}"}}'
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(wanted))


def hold_an_update(proxy: TcpProxy, syncer: SyncerProcess, job: SmallJob) -> None:
    """Return in the middle of sending an update to the only connected learner."""
    polled = threading.Event()
    while pulls(syncer, "update") < 8:
        polled.wait(0.05)
    proxy.hold_answer_after_bytes(half_an_update(job))
    assert proxy.held.wait(WAIT_SECONDS)
    # Whole fragments are sent only when it loads the model, so this is an update.
    assert pulls(syncer, "whole") == len(job.layout.fragments)


def digests_of(directory: Path, epoch: int) -> dict[tuple[int, int], str]:
    """(fragment, version) -> digest of what the syncer made in one epoch."""
    made: dict[tuple[int, int], str] = {}
    for entry in TapeReader(next(tape for tape in find_tapes(directory / "tape") if tape.epoch == epoch)):
        if not isinstance(entry, Torn) and isinstance(entry.event, Merged):
            made[entry.event.fragment, entry.event.version] = entry.event.digest
    return made


def same_bits(directory: Path, job: SmallJob, *learners: LearnerThread) -> None:
    """Check that these hold what the syncer made, and that no update gave a wrong result."""
    for one in learners:
        made = digests_of(directory, one.epoch)
        held = one.held(job.layout)
        assert len(held) == len(job.layout.fragments)
        assert held == {key: made[key] for key in held}
        assert one.counts.updates > 0
        assert one.counts.updates_wrong == 0
    report = replayed(directory)
    assert all(each.merges == each.merges_redone for each in report.epochs)


def test_a_syncer_killed_in_the_middle_of_an_update(tmp_path: Path, address: str) -> None:
    job, directory = small_job(tmp_path), tmp_path / "s"
    with (
        SyncerProcess(job, directory, "--record", "--listen", address) as syncer,
        TcpProxy(address) as proxy,
    ):
        syncer.serving()
        with (
            LearnerThread(job.job, proxy.address, tmp_path / "far", FAR) as far,
            LearnerThread(job.job, address, tmp_path / "near", NEAR) as near,
        ):
            far.start()
            hold_an_update(proxy, syncer, job)
            near.start().wait_for_updates(2)
            syncer.wait_for("a checkpoint is due")
            syncer.kill()
            proxy.release()
            with serving(job, directory, "--record", "--listen", address) as second:
                far.wait_for_updates(8)
                tokens = second.status().merged_tokens
                second.terminate()
            job = small_job(tmp_path, round(tokens) + 5_000)
            with SyncerProcess(job, directory, "--record", "--exit-when-finished", "--listen", address) as third:
                assert {one.wait().kind for one in (far, near)} == {EndKind.FINISHED}
                assert third.exit_code() == EXIT_OK, third.log
            same_bits(directory, job, far, near)


def test_a_learner_killed_in_the_middle_of_an_update(tmp_path: Path) -> None:
    job, directory = small_job(tmp_path, 10_000), tmp_path / "s"
    with serving(job, directory, "--record", "--exit-when-finished") as syncer, TcpProxy(syncer.address) as proxy:
        with LearnerProcess(tmp_path, proxy.address, learner=FAR, job=job.path) as killed:
            hold_an_update(proxy, syncer, job)
        proxy.release()
        with (
            LearnerThread(job.job, proxy.address, killed.directory, FAR) as far,
            LearnerThread(job.job, syncer.address, tmp_path / "near", NEAR) as near,
        ):
            far.start()
            near.start()
            assert {one.wait().kind for one in (far, near)} == {EndKind.FINISHED}
            assert syncer.exit_code() == EXIT_OK, syncer.log
            same_bits(directory, job, far, near)
