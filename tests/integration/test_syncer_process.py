"""A real syncer process, with learners scripted over the real wire: killed, starved of disk, lied to."""

import contextlib
import queue
import resource
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from diloco.local.status_poll import StatusError, fetch_status
from diloco.model import load_model
from diloco.runtime.exits import EXIT_BAD_INPUT, EXIT_OK
from diloco.syncer.disk.checkpoint import checkpoint_names
from diloco.syncer.errors import SyncerError
from diloco.syncer.options import SyncerOptions
from diloco.syncer.process import run_syncer
from diloco.syncer.replay import replay
from diloco.wire.errors import RefusedError
from diloco.wire.messages import FragmentWanted, Refused, Welcome
from tests.support.scripted_learner import WAIT_SECONDS, ScriptedLearner
from tests.support.syncer_process import SmallJob, SyncerProcess

pytestmark = pytest.mark.processes

LEARNERS = ("here/cpu/0", "here/cpu/1")


def learner(job: SmallJob, syncer: SyncerProcess, name: str = LEARNERS[0], instance: str = "") -> ScriptedLearner:
    return ScriptedLearner(syncer.address, job, name, instance)


def train_to_the_end(job: SmallJob, syncer: SyncerProcess) -> None:
    """Both learners train until the job is over, and leave."""

    def run(name: str) -> None:
        with learner(job, syncer, name) as one:
            one.begin().train(lambda _: False)
            one.leave()

    threads = [threading.Thread(target=run, args=(name,)) for name in LEARNERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


def test_a_recorded_run_ends_with_a_model_and_replays_to_the_bit(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, anchor="Current")
    with SyncerProcess(job, tmp_path / "s", "--record", "--exit-when-finished") as syncer:
        syncer.serving()
        train_to_the_end(job, syncer)
        assert syncer.exit_code() == EXIT_OK, syncer.log
    exported = load_model(tmp_path / "s" / "model.safetensors")
    assert exported.info.job == "small"
    assert exported.info.tokens >= 20_000
    report = replay(tmp_path / "s", explain=True)
    assert report.ok, report.problems
    assert report.epochs[0].merges == report.epochs[0].merges_redone > 10
    assert any("Merge fragment 2" in line for line in report.explanation)
    assert not (tmp_path / "s" / "endpoint.json").exists()


def test_killed_it_goes_on_from_its_checkpoint_without_a_hand_and_both_lives_replay(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000)
    with SyncerProcess(job, tmp_path / "s", "--record") as syncer:
        syncer.serving()
        with learner(job, syncer) as one:
            one.begin().train(lambda _: "a checkpoint is due" in syncer.log)
            before = syncer.status()
            syncer.kill()
            assert one.over.wait(WAIT_SECONDS)
    saved = checkpoint_names(tmp_path / "s" / "checkpoints")
    job = SmallJob(tmp_path, tokens=round(before.merged_tokens) + 5_000)
    with SyncerProcess(job, tmp_path / "s", "--record", "--exit-when-finished") as syncer:
        syncer.serving()
        status = syncer.status()
        assert status.epoch == 2
        assert status.checkpoint.newest == saved[-1]
        assert 0 < status.syncer_step <= before.syncer_step
        train_to_the_end(job, syncer)
        assert syncer.exit_code() == EXIT_OK, syncer.log
    report = replay(tmp_path / "s")
    assert report.ok, report.problems
    assert [epoch.recorded for epoch in report.epochs] == [True, True]
    assert all(epoch.merges == epoch.merges_redone > 0 for epoch in report.epochs)


def test_on_sigterm_it_checkpoints_so_that_nothing_is_lost(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, checkpoint_every=3600)
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving()
        with learner(job, syncer) as one:
            one.begin().train(lambda this: len(this.merged) >= 5)
            status = syncer.status()
            assert syncer.terminate() == EXIT_OK, syncer.log
    with SyncerProcess(job, tmp_path / "s") as syncer:
        again = syncer.serving().status()
        assert again.syncer_step >= status.syncer_step
        assert again.bytes_pushed >= status.bytes_pushed > 0
        assert again.learners[0].steps >= 5


def test_a_corrupt_newest_checkpoint_is_reported_and_the_one_before_is_used(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving()
        with learner(job, syncer) as one:
            one.begin().train(lambda this: len(this.merged) >= 5)
            syncer.terminate()
    folder = tmp_path / "s" / "checkpoints"
    *_, good, newest = checkpoint_names(folder)
    with (folder / newest / "momentum.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        byte = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([byte[0] ^ 1]))
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving()
        assert f"{newest}/momentum.safetensors: its digest does not match" in syncer.log
        assert syncer.status().checkpoint.newest == good
        assert syncer.status().phase == "Waiting"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", "size=12m", "tmpfs", folder], check=False).returncode
    ):
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


class Filler:
    """A file that takes whatever room is left."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> bool:
        with self.path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        return True


def test_a_full_disk_costs_checkpoints_and_no_step_and_is_made_up_for(tmp_path: Path, small_disk: Path) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000)
    directory = small_disk / "s"
    with SyncerProcess(job, directory) as syncer:
        syncer.serving()
        with learner(job, syncer) as one:
            one.begin().train(lambda _: "a checkpoint is due" in syncer.log)
            filler = Filler(small_disk / "filler")
            one.train(lambda _: filler.fill() and "cannot write a checkpoint" in syncer.log)
            # A checkpoint that failed leaves room behind, so it is filled again and again.
            one.train(lambda _: filler.fill() and "the tape waits for the disk" in syncer.status().tape_problem)
            one.train(lambda _: filler.fill() and "No space left" in syncer.status().checkpoint.problem)
            step = syncer.status().syncer_step
            one.train(lambda _: filler.fill() and syncer.status().syncer_step >= step + 5)
            assert "diloco_checkpoint_failures_total 0.0" not in syncer.page("/metrics")
            filler.path.unlink()
            before = syncer.log.count("a checkpoint is due")
            one.train(lambda _: syncer.log.count("a checkpoint is due") > before and "no line was lost" in syncer.log)
            assert syncer.status().checkpoint.problem == ""
            assert syncer.terminate() == EXIT_OK, syncer.log
    report = replay(directory)
    assert report.ok, report.problems
    assert report.epochs[0].torn is None


def test_a_checkpoint_that_cannot_be_written_in_full_leaves_nothing_behind(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000)
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving()
        with learner(job, syncer) as one:
            one.begin().train(lambda _: "a checkpoint is due" in syncer.log)
            # Every file over 100 kB fails from here on, as on a disk that runs full in the middle of one.
            resource.prlimit(syncer.pid, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
            one.train(lambda _: "cannot write a checkpoint" in syncer.log)
            whole = checkpoint_names(tmp_path / "s" / "checkpoints")
            syncer.kill()
    assert not list((tmp_path / "s" / "checkpoints").glob(".*.part"))
    with SyncerProcess(job, tmp_path / "s") as syncer:
        assert syncer.serving().status().checkpoint.newest == whole[-1]


def test_only_what_was_asked_for_is_taken_in(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, quorum=2, tokens=10_000_000)
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving()
        with learner(job, syncer) as one, learner(job, syncer, LEARNERS[1]) as two:
            one.begin()
            two.begin()
            wanted = two_wanted(one, two)
            payload = one.codec.encode(one.gradient(wanted.fragment))
            for changes in (
                {"version": wanted.version + 1},
                {"attempt": wanted.attempt + 1},
                {"fragment": 3},
                {"fragment": 1000},
                {"incarnation": one.incarnation + 1},
                {"incarnation": two.incarnation},
                {"learner": "here/cpu/7"},
                {"epoch": "0"},
                {"codec": "Int4"},
                {"base_version": wanted.version},
            ):
                with pytest.raises(RefusedError):
                    one.push(wanted, payload, **changes)
            with pytest.raises(RefusedError, match="bytes in codec None, not"):
                one.push(wanted, torch.zeros(payload.numel() + 4, dtype=torch.uint8))
            poisoned = payload.clone()
            poisoned[:4] = torch.tensor([float("nan")]).view(torch.uint8)
            refused = one.push(wanted, poisoned)
            assert not refused.accepted
            assert "not finite" in refused.reason
            assert one.push(wanted, payload).accepted
            with pytest.raises(RefusedError, match="is here already"):
                one.push(wanted, payload)
            with pytest.raises(RefusedError, match="not yet at"):
                one.pull(0, 1000)
            with pytest.raises(RefusedError, match="they count from 0"):
                one.pull(1000, 0)
            metrics = syncer.page("/metrics")
            assert "diloco_pushes_refused_total 13.0" in metrics
            assert "diloco_inbox_bytes" in metrics
            assert syncer.page("/healthz").startswith("event loop lag")
            assert syncer.page("/readyz") == "serving\n"


def two_wanted(one: ScriptedLearner, two: ScriptedLearner) -> FragmentWanted:
    """Make steps on both until the first is asked for a fragment."""
    while True:
        one.step()
        two.step()
        try:
            message = one.next(0.05)
        except queue.Empty:
            continue
        if isinstance(message, FragmentWanted):
            return message
        assert message is not None
        one.obey(message)


def test_an_outer_gradient_that_comes_after_the_merge_is_late(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, tokens=10_000_000)
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving()
        with learner(job, syncer) as one, learner(job, syncer, LEARNERS[1]) as two:
            one.begin()
            two.begin()
            wanted = two_wanted(one, two)
            fast = threading.Thread(
                target=two.train, args=(lambda this: (wanted.fragment, wanted.version) in this.merged,)
            )
            fast.start()
            fast.join(WAIT_SECONDS)
            with pytest.raises(RefusedError, match="was not, or is no longer, asked for"):
                one.push(wanted)


def test_a_second_process_with_one_identity_takes_over_and_the_first_cannot_come_back(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving()
        with learner(job, syncer, instance="first") as first, learner(job, syncer, instance="second") as second:
            first.begin()
            second.begin()
            assert first.over.wait(WAIT_SECONDS)
            while not isinstance(message := first.next(), Refused):
                assert message is not None
            assert message.refusal == "Superseded"
            again = first.join()
            assert isinstance(again, Refused)
            assert again.refusal == "Superseded"
            second.train(lambda this: len(this.merged) >= 2)


def test_a_process_whose_link_broke_is_let_in_again_without_loading(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving()
        with learner(job, syncer) as one:
            one.begin().train(lambda this: len(this.merged) >= 2)
            one.hang_up()
            answer = one.join(epoch=one.epoch, versions=tuple(one.versions))
            assert isinstance(answer, Welcome)
            assert answer.load == ()
            other_epoch = learner(job, syncer, LEARNERS[1])
            with other_epoch:
                answer = other_epoch.join(epoch="99", versions=tuple(one.versions))
                assert isinstance(answer, Welcome)
                assert answer.load == (0, 1, 2, 3)


def test_processes_of_another_job_or_model_are_told_so(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving()
        with learner(job, syncer) as one:
            one.job = "other"
            with pytest.raises(RefusedError, match="job 'small', not of 'other'"):
                one.join()
            one.job = job.name
            with pytest.raises(RefusedError, match="has another model than the syncer"):
                one.join(layout_digest="0" * 64)
            one.learner = "there/cpu/0"
            answer = one.join()
            assert isinstance(answer, Refused)
            assert answer.refusal == "UnknownLearner"


def test_after_the_end_a_restarted_syncer_says_that_the_job_is_over(tmp_path: Path) -> None:
    job = SmallJob(tmp_path, tokens=5_000)
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving()
        train_to_the_end(job, syncer)
        status = syncer.status()
        assert status.phase == "Complete"
        assert status.evaluations[-1].final
        syncer.wait_for("the model is at")
        assert syncer.terminate() == EXIT_OK
    (tmp_path / "s" / "model.safetensors").unlink()
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving().wait_for("the model is at")
        again = syncer.status()
        assert (again.phase, again.merged_tokens, again.goodput) == ("Complete", status.merged_tokens, status.goodput)
        with learner(job, syncer) as one:
            answer = one.join()
            assert isinstance(answer, Refused)
            assert answer.refusal == "Finished"


def one_line_of(syncer: SyncerProcess) -> str:
    """What a syncer that does not start says: one line."""
    assert syncer.exit_code() == EXIT_BAD_INPUT, syncer.log
    (line,) = syncer.log.strip().splitlines()
    return line


def test_a_busy_port_is_one_line(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with SyncerProcess(job, tmp_path / "s", "--listen", address) as syncer:
            assert address in one_line_of(syncer)
        with SyncerProcess(job, tmp_path / "t", "--http", address) as syncer:
            assert f"cannot serve HTTP at {address}" in one_line_of(syncer)


def test_a_directory_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    with SyncerProcess(job, job.path) as syncer:
        assert f"{job.path}: is a file; use a directory" in one_line_of(syncer)
    with SyncerProcess(job, Path("/proc/nowhere")) as syncer:
        assert "/proc/nowhere: cannot be written to" in one_line_of(syncer)


def page(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_it_is_alive_while_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = SmallJob(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        http = f"127.0.0.1:{free.getsockname()[1]}"
    seen: list[tuple[int, str]] = []

    def loads(*_: object) -> None:
        seen.extend(page(http, path) for path in ("/healthz", "/readyz"))
        raise SyncerError("seen enough")

    monkeypatch.setattr("diloco.syncer.process.prepare", loads)
    assert run_syncer(SyncerOptions(job.job, tmp_path / "s", http=http)) == EXIT_BAD_INPUT
    assert [status for status, _ in seen] == [200, 503]
    assert all("creating the model or reading the newest checkpoint" in text for _, text in seen)


def test_a_second_syncer_waits_for_the_first_one_and_goes_on(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    with SyncerProcess(job, tmp_path / "s") as first:
        first.serving()
        with socket.create_server(("127.0.0.1", 0)) as free:
            http = f"127.0.0.1:{free.getsockname()[1]}"
        with SyncerProcess(job, tmp_path / "s", "--http", http) as second:
            second.wait_for("another syncer is using this directory; waiting for it to end")
            assert "serving job" not in second.log
            assert page(http, "/healthz")[0] == 200
            waits = "not serving yet: waiting for another syncer that uses the directory\n"
            assert page(http, "/readyz") == page(http, "/status") == (503, waits)
            with pytest.raises(StatusError, match="waiting for another syncer"):
                fetch_status(http)
            assert first.terminate() == EXIT_OK
            second.serving()
            assert "continues from checkpoint" in second.log
            assert page(http, "/readyz") == (200, "serving\n")
            assert fetch_status(http).job == job.name


def test_a_checkpoint_of_another_model_or_job_is_one_line_that_names_both(tmp_path: Path) -> None:
    job = SmallJob(tmp_path)
    with SyncerProcess(job, tmp_path / "s") as syncer:
        syncer.serving()
    other_model = SmallJob(tmp_path, preset="nano")
    with SyncerProcess(other_model, tmp_path / "s") as syncer:
        line = one_line_of(syncer)
        assert f"{job.layout.numel} parameters in 4 fragments" in line
        assert f"{other_model.layout.numel} parameters in 4 fragments" in line
    other_job = SmallJob(tmp_path, name="another")
    with SyncerProcess(other_job, tmp_path / "s") as syncer:
        assert "the checkpoint is of job 'small', not of 'another'" in one_line_of(syncer)
