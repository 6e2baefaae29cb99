"""A backup that is complete can be restored; whatever is not complete, not ours or damaged is never taken for one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import fsspec  # type: ignore[import-untyped]
import pytest
import torch

from diloco.runtime.exits import EXIT_UNEXPECTED
from diloco.spec.backup import InitFrom
from diloco.syncer.backup import restore
from diloco.syncer.backup.manifest import BackupError, BackupName, _digest, complete, write_manifest
from diloco.syncer.backup.object_store import ObjectStore, StoppedError, StoreError, open_store
from diloco.syncer.backup.ownership import JobName, NotOursError
from diloco.syncer.backup.upload import upload_backup
from diloco.syncer.disk.checkpoint import OtherModelError
from diloco.syncer.errors import SyncerError
from diloco.syncer.prepare import StartState, prepare
from tests.support.backups import Trained, beginning_from, folder_store, job_of


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return folder_store(tmp_path / "kept")


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return Trained(tmp_path / "first")


def restored(trained: Trained, tmp_path: Path, **changes: object) -> StartState:
    begins = InitFrom.model_validate({"url": str(tmp_path / "kept"), **changes})
    return prepare(beginning_from(trained.job, begins), tmp_path / "second" / "checkpoints")


def value_of(state: StartState) -> float:
    return float(state.store.current(0).parameters[0])


def test_the_newest_backup_is_restored_with_its_training(trained: Trained, store: ObjectStore, tmp_path: Path) -> None:
    trained.backed_up(store, 1.0)
    trained.backed_up(store, 2.0)
    state = restored(trained, tmp_path)
    assert (value_of(state), state.epoch, state.training, state.checkpoint) == (
        2.0,
        3,
        trained.owner.training,
        "000002",
    )
    assert state.engine is not None
    # From then on it is an ordinary checkpoint.
    assert value_of(prepare(trained.job, tmp_path / "second" / "checkpoints")) == 2.0


def test_a_named_backup_is_restored(trained: Trained, store: ObjectStore, tmp_path: Path) -> None:
    first = trained.backed_up(store, 1.0)
    trained.backed_up(store, 2.0)
    assert value_of(restored(trained, tmp_path, backup=first.name)) == 1.0


def test_a_checkpoint_of_its_own_comes_before_a_backup(trained: Trained, store: ObjectStore, tmp_path: Path) -> None:
    trained.backed_up(store, 1.0)
    Trained(tmp_path / "second").checkpoint(5.0)
    assert value_of(restored(trained, tmp_path)) == 5.0


def test_only_the_newest_are_kept(trained: Trained, store: ObjectStore) -> None:
    made = [trained.backed_up(store, float(value), keep=2).name for value in range(4)]
    assert [str(one) for one in complete(store.names())] == made[2:]
    assert len(store.names()) == 4


def test_a_training_from_zero_deletes_no_backup_of_the_one_before(
    trained: Trained, store: ObjectStore, tmp_path: Path
) -> None:
    before = trained.backed_up(store, 1.0, keep=1).name
    anew = Trained(tmp_path / "anew", training="f" * 16)
    for value in (2.0, 3.0):
        last = anew.backed_up(store, value, keep=1).name
    assert {str(one) for one in complete(store.names())} == {before, last}


def test_the_same_checkpoint_is_not_uploaded_twice(trained: Trained, store: ObjectStore) -> None:
    name = trained.checkpoint(1.0)
    first = upload_backup(store, trained.owner, trained.source(name), 3, lambda _: True)

    def go_on(moved: int) -> bool:
        assert moved == 0, "it is there already"
        return True

    again = upload_backup(store, trained.owner, trained.source(name), 3, go_on)
    assert again == first


def test_another_checkpoint_of_the_same_number_is_uploaded(
    trained: Trained, store: ObjectStore, tmp_path: Path
) -> None:
    """As after the volume was set back to an older copy."""
    trained.backed_up(store, 1.0)
    copy = Trained(tmp_path / "copy")
    copy.backed_up(store, 2.0)
    assert [one.what for one in complete(store.names())] == ["000001", "000001"]
    assert value_of(restored(trained, tmp_path)) == 2.0


def test_a_folder_of_another_job_is_refused(trained: Trained, store: ObjectStore, tmp_path: Path) -> None:
    Trained(tmp_path / "other", job_of("other"), training="f" * 16).backed_up(store, 1.0)
    with pytest.raises(NotOursError, match=r"spec.syncer.backup.url: .* has backups of job 'other'; use a folder for"):
        trained.backed_up(store, 2.0)
    assert len(complete(store.names())) == 1


def test_an_upload_that_breaks_off_is_no_backup(trained: Trained, store: ObjectStore, tmp_path: Path) -> None:
    trained.backed_up(store, 1.0)
    name = trained.checkpoint(2.0)
    with pytest.raises(StoppedError):
        upload_backup(store, trained.owner, trained.source(name), 3, lambda _: False)
    assert len(complete(store.names())) == 1
    assert value_of(restored(trained, tmp_path)) == 1.0


def test_a_checkpoint_that_is_damaged_on_disk_is_no_backup(trained: Trained, store: ObjectStore) -> None:
    name = trained.checkpoint(1.0)
    source = trained.source(name)
    with (trained.checkpoints / name / "momentum.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    with pytest.raises(BackupError, match=r"momentum\.safetensors: its digest does not match"):
        upload_backup(store, trained.owner, source, 3, lambda _: True)
    assert complete(store.names()) == []


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def changed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut_short, changed, Path.unlink])
@pytest.mark.parametrize(
    "file", ["{}/parameters.safetensors", "{}/momentum.safetensors", "{}/manifest.json", "{}.json"]
)
def test_a_damaged_backup_is_passed_over_for_the_one_before(
    trained: Trained, store: ObjectStore, tmp_path: Path, damage: Callable[[Path], None], file: str
) -> None:
    trained.backed_up(store, 1.0)
    newest = trained.backed_up(store, 2.0)
    damage(tmp_path / "kept" / file.format(newest.name))
    assert value_of(restored(trained, tmp_path)) == 1.0
    assert [path.name for path in (tmp_path / "second" / "checkpoints").iterdir()] == ["000001"]


def test_without_a_usable_backup_the_job_does_not_begin_from_zero(
    trained: Trained, store: ObjectStore, tmp_path: Path
) -> None:
    with pytest.raises(SyncerError, match=r"has no complete and undamaged backup of a checkpoint; use another folder"):
        restored(trained, tmp_path)
    only = trained.backed_up(store, 1.0)
    changed(tmp_path / "kept" / only.name / "parameters.safetensors")
    with pytest.raises(SyncerError, match=r"spec.initFrom.url: .* has no complete and undamaged backup"):
        restored(trained, tmp_path)
    with pytest.raises(SyncerError, match="has no undamaged backup other"):
        restored(trained, tmp_path, backup="other")


def test_a_backup_of_another_job_is_refused_by_name(trained: Trained, store: ObjectStore, tmp_path: Path) -> None:
    Trained(tmp_path / "other", job_of("other")).backed_up(store, 1.0)
    with pytest.raises(SyncerError, match="is of job 'other', not of 'made'; use a folder of this job"):
        restored(trained, tmp_path)


def test_a_backup_of_another_model_is_refused(trained: Trained, store: ObjectStore, tmp_path: Path) -> None:
    trained.backed_up(store, 2.0, step=9)
    Trained(tmp_path / "other", job_of(sync={"fragments": 3}), training="f" * 16).backed_up(store, 1.0)
    with pytest.raises(OtherModelError, match=r"is of another model .* use the spec.model and spec.sync.fragments"):
        restored(trained, tmp_path)


def test_a_manifest_that_claims_too_much_is_passed_over_unread(
    trained: Trained, store: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained.backed_up(store, 1.0)
    newest = trained.backed_up(store, 2.0)
    huge = newest.files["parameters.safetensors"].model_copy(update={"size_bytes": 2**50})
    lying = newest.model_copy(update={"files": {**newest.files, "parameters.safetensors": huge}})
    store.write(f"{newest.name}.json", write_manifest(lying))
    assert value_of(restored(trained, tmp_path)) == 1.0
    assert f"parameters.safetensors has {2**50} bytes; with this job's model at most" in caplog.text


def test_a_name_that_leads_out_of_the_folder_is_passed_over(
    trained: Trained, store: ObjectStore, tmp_path: Path
) -> None:
    trained.backed_up(store, 1.0)
    newest = trained.backed_up(store, 2.0)
    plain = json.loads(write_manifest(newest))["manifest"]
    plain["files"]["../../out"] = plain["files"].pop("momentum.safetensors")
    digest = _digest(plain)
    store.write(f"{newest.name}.json", json.dumps({"sha256": digest, "manifest": plain}).encode())
    assert value_of(restored(trained, tmp_path)) == 1.0


def test_a_manifest_of_another_training_than_its_name_is_passed_over(
    trained: Trained, store: ObjectStore, tmp_path: Path
) -> None:
    trained.backed_up(store, 1.0)
    newest = trained.backed_up(store, 2.0)
    store.write(f"{newest.name}.json", write_manifest(newest.model_copy(update={"training": "no id\n"})))
    state = restored(trained, tmp_path)
    assert (value_of(state), state.training) == (1.0, trained.owner.training)


def test_a_backup_of_a_later_version_is_refused(trained: Trained, store: ObjectStore, tmp_path: Path) -> None:
    newest = trained.backed_up(store, 2.0)
    store.write(f"{newest.name}.json", write_manifest(newest.model_copy(update={"format": 2})))
    with pytest.raises(SyncerError, match="its format is 2; use the version of diloco that wrote it or a later one"):
        restored(trained, tmp_path)


def test_a_volume_without_room_is_named_before_anything_is_fetched(
    trained: Trained, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained.backed_up(store, 2.0)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(SyncerError, match=r"1000 bytes are free, and the backup needs \d+; use a larger") as told:
        restored(trained, tmp_path)
    assert told.value.exit_code == EXIT_UNEXPECTED


def test_parameters_alone_begin_a_new_job(trained: Trained, store: ObjectStore, tmp_path: Path) -> None:
    trained.backed_up(store, 2.0)
    begins = InitFrom(url=str(tmp_path / "kept"), kind="Weights")
    job = beginning_from(job_of("other"), begins)
    state = prepare(job, tmp_path / "second" / "checkpoints")
    assert (value_of(state), state.engine, state.checkpoint) == (2.0, None, "")
    assert not torch.any(state.store.momentum(0))
    assert not (tmp_path / "second" / ".initial.part").exists()


def test_parameters_that_are_not_finite_begin_nothing(trained: Trained, store: ObjectStore, tmp_path: Path) -> None:
    trained.backed_up(store, float("nan"))
    with pytest.raises(SyncerError, match="has parameters that are not finite; use another backup"):
        restored(trained, tmp_path, kind="Weights")


def test_an_object_store_without_folders_works_alike(trained: Trained, tmp_path: Path) -> None:
    files = fsspec.filesystem("memory", skip_instance_cache=True)
    store = ObjectStore("memory://kept", files, f"/{tmp_path.name}")
    made = [trained.backed_up(store, float(value), keep=2) for value in range(3)]
    assert [str(one) for one in complete(store.names())] == [one.name for one in made[1:]]
    begins = InitFrom(url="/anything")
    found = restore.restore(begins, JobName("made"), trained.beginning.layout, tmp_path / "r", lambda *_: store)
    assert next(found) == ("000003", trained.owner.training)
    with pytest.raises(StoreError, match="memory://kept: none cannot be found"):
        store.read("none", 10)


def test_a_clock_that_was_set_back_does_not_make_a_backup_older() -> None:
    early = BackupName.parse("20261123T020000Z-0123456789abcdef-000001-00000000")
    assert early is not None
    later = BackupName.after(early.time, early.time.replace(year=2020), early.training, "000002", "0" * 8)
    assert early < later
    assert str(early) < str(later)
    assert BackupName.parse(str(later)) == later


@pytest.mark.parametrize("url", ["s3://kept", "gs://kept/mine"])
def test_a_bucket_without_its_package_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.fsspec", None)
    with pytest.raises(StoreError, match="needs the package obstore, which is not installed; install it"):
        open_store(url)
