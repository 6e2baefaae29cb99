"""A real syncer process that uploads backups, and others that begin from them after its directory is gone."""

import shutil
from pathlib import Path

import pytest

from diloco.model import load_model
from diloco.runtime.object_store import open_store
from diloco.runtime.process.exits import EXIT_OK
from diloco.spec.status.syncer import BackupStatus
from diloco.syncer.backup.manifest import complete
from diloco.wire.messages import Welcome
from tests.integration.two_learners import learner, train_to_the_end
from tests.support.machine_limits import Filler, small_disk
from tests.support.syncer_process import SmallJob, SyncerProcess, serving

pytestmark = pytest.mark.processes


def backed_up_every_second(kept: Path) -> str:
    return f"{{url: {kept}, everySeconds: 1, maxBackups: 2}}"


def trained_for_a_while(tmp_path: Path, kept: Path) -> int:
    """Train until a backup with merges is complete, and lose everything else; the merges in the newest backup."""
    job = SmallJob(tmp_path, tokens=10_000_000, backup=backed_up_every_second(kept))
    with serving(job, tmp_path / "s") as syncer:

        def uploaded(_: object) -> bool:
            backup = syncer.status().backup
            return backup is not None and backup.step > 0

        with learner(job, syncer) as one:
            one.begin().train(uploaded)
        backup = syncer.status().backup
        assert backup is not None
        syncer.kill()
    shutil.rmtree(tmp_path / "s")
    return backup.step


def test_a_new_syncer_resumes_from_a_backup(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    step = trained_for_a_while(tmp_path, kept)
    job = SmallJob(tmp_path, tokens=10_000_000, init_from=f"{{url: {kept}}}", backup=backed_up_every_second(kept))
    with serving(job, tmp_path / "s") as syncer:
        status = syncer.status()
        assert status.syncer_step >= step
        assert status.learners[0].steps > 0
        # It is another start of the same training, not a first one.
        assert status.epoch == 2
        with learner(job, syncer) as one:
            one.begin().train(lambda this: len(this.merged) >= 3)
            assert syncer.status().syncer_step > step


def test_a_damaged_newest_backup_gives_way_to_the_one_before(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    trained_for_a_while(tmp_path, kept)
    *_, good, newest = complete(open_store(str(kept)).names())
    with (kept / str(newest) / "00000.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        byte = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([byte[0] ^ 1]))
    job = SmallJob(tmp_path, tokens=10_000_000, init_from=f"{{url: {kept}}}")
    with serving(job, tmp_path / "s") as syncer:
        assert f"skipped backup {newest}: the digest of 00000.safetensors does not match" in syncer.log
        assert f"begins from backup {good}" in syncer.log


def test_an_end_is_told_once_the_model_is_in_the_bucket(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    job = SmallJob(tmp_path, tokens=5_000, backup=backed_up_every_second(kept))
    with serving(job, tmp_path / "s", "--exit-when-finished") as syncer:
        train_to_the_end(job, syncer)
        assert syncer.exit_code() == EXIT_OK, syncer.log
    names = complete(open_store(str(kept)).names())
    assert [name.is_model for name in names].count(True) == 1
    (uploaded,) = [name for name in names if name.is_model]
    copy = kept / str(uploaded) / "model.safetensors"
    assert copy.read_bytes() == (tmp_path / "s" / "model.safetensors").read_bytes()
    # And a new job begins from it.
    other = SmallJob(tmp_path, name="other", init_from=f"{{url: {copy}, type: Weights}}")
    with serving(other, tmp_path / "t") as syncer:
        status = syncer.status()
        assert (status.syncer_step, status.merged_tokens) == (0, 0)
    assert load_model(copy).info.job == "small"


def test_a_full_folder_is_told_and_stops_no_training(tmp_path: Path) -> None:
    with small_disk(tmp_path, 8192) as disk:
        filler = Filler(disk / "filler")
        job = SmallJob(tmp_path, tokens=10_000_000, backup=backed_up_every_second(disk / "kept"))
        with serving(job, tmp_path / "s") as syncer:

            def problem() -> str:
                backup = syncer.status().backup
                return "" if backup is None else backup.problem

            with learner(job, syncer) as one:
                one.begin().train(lambda _: filler.fill() and "No space left" in problem())
                step = syncer.status().syncer_step
                one.train(lambda _: filler.fill() and syncer.status().syncer_step > step + 5)
                assert syncer.status().checkpoint.problem == ""
                assert "diloco_backup_failing 1.0" in syncer.page("/metrics")
                filler.path.unlink()
                one.train(lambda _: problem() == "")
                assert "diloco_backup_age_seconds" in syncer.page("/metrics")


def status_of_backup(syncer: SyncerProcess) -> BackupStatus:
    backup = syncer.status().backup
    assert backup is not None
    return backup


def test_a_training_begun_by_mistake_does_not_displace_the_lost_one(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    step = trained_for_a_while(tmp_path, kept)
    lost = complete(open_store(str(kept)).names())
    job = SmallJob(tmp_path, tokens=10_000_000, backup=backed_up_every_second(kept))
    with serving(job, tmp_path / "s") as syncer:  # initFrom was forgotten
        syncer.wait_for("of another training of this job; use another folder, or begin the job with spec.initFrom")
        assert status_of_backup(syncer).problem
    assert complete(open_store(str(kept)).names()) == lost
    shutil.rmtree(tmp_path / "s")
    job = SmallJob(tmp_path, tokens=10_000_000, init_from=f"{{url: {kept}}}", backup=backed_up_every_second(kept))
    with serving(job, tmp_path / "s") as syncer:
        assert syncer.status().syncer_step >= step
        syncer.wait_for(" is complete: ")
        assert status_of_backup(syncer).problem == ""


def test_learners_reload_from_a_directory_that_was_set_back(tmp_path: Path) -> None:
    """The volume is restored from a copy that was made before a restart: its next epoch has the number of the last."""
    job = SmallJob(tmp_path, tokens=10_000_000)
    with serving(job, tmp_path / "s") as syncer:
        assert syncer.terminate() == EXIT_OK
    shutil.copytree(tmp_path / "s", tmp_path / "copy")
    with serving(job, tmp_path / "s") as syncer:
        with learner(job, syncer) as one:
            one.begin().train(lambda this: len(this.merged) >= 5)
            epoch, held = one.epoch, tuple(one.versions)
        assert syncer.status().epoch == 2
        syncer.kill()
    shutil.rmtree(tmp_path / "s")
    (tmp_path / "copy").rename(tmp_path / "s")
    with serving(job, tmp_path / "s") as syncer:
        assert syncer.status().epoch == 2
        with learner(job, syncer) as one:
            answer = one.join(epoch=epoch, versions=held)
            assert isinstance(answer, Welcome)
            assert answer.epoch != epoch
            assert len(answer.load) == len(job.layout.fragments)
            one.load(answer)
            one.train(lambda this: len(this.merged) >= 3)
