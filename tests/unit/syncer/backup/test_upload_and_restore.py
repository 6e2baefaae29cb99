"""A backup that is complete can be restored; whatever is not complete, not ours or damaged is never taken for one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import fsspec  # type: ignore[import-untyped]
import pytest
import torch

from diloco.runtime.object_store import ObjectStore, StoppedError, StoreError, open_store
from diloco.runtime.process.exits import EXIT_UNEXPECTED
from diloco.spec.backup import InitFrom
from diloco.syncer.backup import restore
from diloco.syncer.backup.manifest import LIMIT_BYTES, BackupError, BackupManifest, _digest, complete, write_manifest
from diloco.syncer.backup.ownership import JobName
from diloco.syncer.disk.checkpoint import LoadedCheckpoint, OtherModelError, load_checkpoint
from diloco.syncer.disk.exporter import export
from diloco.syncer.errors import SyncerError
from diloco.syncer.prepare import StartState, prepare
from tests.support.backups import Moved, Trained, beginning_from, job_of, value_of
from tests.support.damage import cut, flip


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return Trained(tmp_path / "first")


def restored(trained: Trained, tmp_path: Path, **changes: object) -> StartState:
    begins = InitFrom.model_validate({"url": str(tmp_path / "kept"), **changes})
    return prepare(beginning_from(trained.job, begins), tmp_path / "second" / "checkpoints")


def test_the_newest_backup_is_restored_with_its_training(trained: Trained, tmp_path: Path) -> None:
    trained.backed_up(1.0)
    trained.backed_up(2.0)
    state = restored(trained, tmp_path)
    assert (value_of(state), state.epoch, state.checkpoint) == (2.0, 3, "000002")
    assert state.training == trained.owner.training
    assert state.engine is not None
    # From then on it is an ordinary checkpoint.
    assert value_of(prepare(trained.job, tmp_path / "second" / "checkpoints")) == 2.0


def test_a_checkpoint_of_its_own_comes_before_a_backup(trained: Trained, tmp_path: Path) -> None:
    trained.backed_up(1.0)
    Trained(tmp_path / "second").checkpoint(5.0)
    assert value_of(restored(trained, tmp_path)) == 5.0


def test_only_the_newest_are_kept(trained: Trained) -> None:
    made = [trained.backed_up(float(value), keep=2).name for value in range(4)]
    assert trained.kept == made[2:]
    assert len(trained.store.names()) == 4


def test_the_same_checkpoint_is_not_uploaded_twice(trained: Trained) -> None:
    name = trained.checkpoint(1.0)
    first = trained.upload(name)

    def go_on(moved: int) -> bool:
        assert moved == 0, "it is there already"
        return True

    again = trained.upload(name, go_on)
    assert again == first


def in_memory(root: str) -> ObjectStore:
    return ObjectStore("memory://kept", fsspec.filesystem("memory", skip_instance_cache=True), f"/{root}")


def fetched(trained: Trained, tmp_path: Path) -> LoadedCheckpoint:
    """The newest backup in the store of ``trained``."""
    layout, target = trained.beginning.layout, tmp_path / "fetched"

    def load(name: str) -> LoadedCheckpoint:
        return load_checkpoint(target, name, layout, "made")

    begins = InitFrom(url="/anything")
    found, training = restore.restore(
        begins, JobName("made"), layout, target, load=load, open_folder=lambda *_: trained.store
    )
    assert training == trained.owner.training
    return found


def test_a_bucket_copies_unchanged_fragments_itself(trained: Trained, tmp_path: Path) -> None:
    trained.store = in_memory(tmp_path.name)
    earlier = trained.backed_up(1.0).name
    changed, moved = len(trained.beginning.layout.fragments) - 1, Moved()
    name = trained.checkpoint(2.0, first=changed)
    made = trained.upload(name, moved.go_on)
    sent = [file.size_bytes for file in (made.files[f"{changed:05d}.safetensors"], made.files["manifest.json"])]
    assert sorted(size for size in moved if size) == sorted(sent)
    for old in (f"{earlier}.json", earlier):
        trained.store.delete(old)
    back = fetched(trained, tmp_path)
    assert (back.name, trained.store.is_folder) == (name, False)
    assert [float(one.parameters[0]) for one in back.fragments] == [1.0] * changed + [2.0]


def test_in_a_folder_damage_of_one_backup_is_in_no_other(trained: Trained, tmp_path: Path) -> None:
    trained.backed_up(1.0)
    trained.upload(trained.checkpoint(2.0, first=1))
    flip(tmp_path / "kept" / trained.kept[-1] / "00000.safetensors")
    name = trained.checkpoint(3.0, first=1)
    cut(trained.checkpoints / name / "00000.safetensors")
    with pytest.raises(BackupError, match="its digest does not match"):
        trained.upload(name)
    assert value_of(restored(trained, tmp_path)) == 1.0


def test_what_the_store_cannot_copy_is_sent(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained.store = in_memory(tmp_path.name)
    trained.backed_up(1.0)

    def refused(*_: object) -> None:
        raise StoreError("it copies nothing larger than 5 GB")

    monkeypatch.setattr(ObjectStore, "copy", refused)
    moved = Moved()
    made = trained.upload(trained.checkpoint(2.0, first=1), moved.go_on)
    assert sum(moved) == made.size_bytes


def test_a_stop_between_two_copies_ends_the_upload(trained: Trained, tmp_path: Path) -> None:
    trained.store = in_memory(tmp_path.name)
    trained.backed_up(1.0)
    name, copied = trained.checkpoint(1.0), 0

    def go_on(moved: int) -> bool:
        nonlocal copied
        copied += not moved
        return copied < 3

    (trained.checkpoints / name / "manifest.json").touch()
    with pytest.raises(StoppedError):
        trained.upload(name, go_on)
    assert len(trained.kept) == 1


def test_another_checkpoint_of_the_same_number_is_uploaded(trained: Trained, tmp_path: Path) -> None:
    """As after the volume was set back to an older copy."""
    trained.backed_up(1.0)
    copy = Trained(tmp_path / "copy")
    copy.backed_up(2.0)
    assert [one.what for one in complete(trained.store.names())] == ["000001", "000001"]
    assert value_of(restored(trained, tmp_path)) == 2.0


def test_an_upload_that_breaks_off_is_no_backup(trained: Trained, tmp_path: Path) -> None:
    trained.backed_up(1.0)
    name = trained.checkpoint(2.0)
    with pytest.raises(StoppedError):
        trained.upload(name, lambda _: False)
    assert len(complete(trained.store.names())) == 1
    assert value_of(restored(trained, tmp_path)) == 1.0


def test_a_checkpoint_that_is_damaged_on_disk_is_no_backup(trained: Trained) -> None:
    name = trained.checkpoint(1.0)
    with (trained.checkpoints / name / "00001.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    with pytest.raises(BackupError, match=r"00001\.safetensors: its digest does not match"):
        trained.upload(name)
    assert complete(trained.store.names()) == []


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
@pytest.mark.parametrize("file", ["{}/00000.safetensors", "{}/00001.safetensors", "{}/manifest.json", "{}.json"])
def test_a_damaged_backup_is_passed_over_for_the_one_before(
    trained: Trained, tmp_path: Path, damage: Callable[[Path], object], file: str
) -> None:
    trained.backed_up(1.0)
    newest = trained.backed_up(2.0)
    damage(tmp_path / "kept" / file.format(newest.name))
    assert value_of(restored(trained, tmp_path)) == 1.0
    assert [path.name for path in (tmp_path / "second" / "checkpoints").iterdir()] == ["000001"]


def test_without_a_usable_backup_the_job_does_not_begin_from_zero(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(SyncerError, match=r"has no complete and undamaged backup of a checkpoint; use another folder"):
        restored(trained, tmp_path)
    only = trained.backed_up(1.0)
    flip(tmp_path / "kept" / only.name / "00000.safetensors")
    with pytest.raises(SyncerError, match=r"spec.initFrom.url: .* has no complete and undamaged backup"):
        restored(trained, tmp_path)
    with pytest.raises(SyncerError, match="has no undamaged backup other"):
        restored(trained, tmp_path, backup="other")


def test_a_backup_of_another_model_is_refused(trained: Trained, tmp_path: Path) -> None:
    trained.backed_up(2.0, step=9)
    Trained(tmp_path / "other", job_of(sync={"fragments": 3})).backed_up(1.0)
    with pytest.raises(OtherModelError, match=r"is of another model .* use the spec.model and spec.sync.fragments"):
        restored(trained, tmp_path)


def with_too_large_a_file(made: BackupManifest) -> bytes:
    huge = made.files["00000.safetensors"].model_copy(update={"size_bytes": 2**50})
    return write_manifest(made.model_copy(update={"files": {**made.files, "00000.safetensors": huge}}))


def with_a_name_outside_the_folder(made: BackupManifest) -> bytes:
    plain = json.loads(write_manifest(made))["manifest"]
    plain["files"]["../../out"] = plain["files"].pop("00001.safetensors")
    return json.dumps({"sha256": _digest(plain), "manifest": plain}).encode()


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        (with_too_large_a_file, f"00000.safetensors has {2**50} bytes; with this job's model at most"),
        (with_a_name_outside_the_folder, ""),
    ],
)
def test_a_backup_whose_manifest_lies_is_passed_over_unread(
    trained: Trained,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    forge: Callable[[BackupManifest], bytes],
    said: str,
) -> None:
    trained.backed_up(1.0)
    newest = trained.backed_up(2.0)
    trained.store.write(f"{newest.name}.json", forge(newest))
    state = restored(trained, tmp_path)
    assert (value_of(state), state.training) == (1.0, trained.owner.training)
    assert said in caplog.text


def test_a_backup_of_a_later_version_is_refused(trained: Trained, tmp_path: Path) -> None:
    newest = trained.backed_up(2.0)
    trained.store.write(f"{newest.name}.json", write_manifest(newest.model_copy(update={"format": 2})))
    with pytest.raises(SyncerError, match="its format is 2; use the version of diloco that wrote it or a later one"):
        restored(trained, tmp_path)


def test_a_volume_without_room_is_named_before_anything_is_fetched(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained.backed_up(2.0)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(SyncerError, match=r"1000 bytes are free, and the backup needs \d+; use a larger") as told:
        restored(trained, tmp_path)
    assert told.value.exit_code == EXIT_UNEXPECTED


def test_parameters_alone_begin_a_new_job(trained: Trained, tmp_path: Path) -> None:
    trained.backed_up(2.0)
    begins = InitFrom(url=str(tmp_path / "kept"), type="Weights")
    job = beginning_from(job_of("other"), begins)
    state = prepare(job, tmp_path / "second" / "checkpoints")
    assert (value_of(state), state.engine, state.checkpoint) == (2.0, None, "")
    assert not torch.any(state.store.momentum(0))
    assert not (tmp_path / "second" / ".initial.part").exists()


@pytest.mark.parametrize("begins", ["Resume", "Weights"])
@pytest.mark.parametrize("value", [float("nan"), 1e30])
def test_a_backup_that_cannot_be_trained_on_is_passed_over(
    trained: Trained, tmp_path: Path, caplog: pytest.LogCaptureFixture, begins: str, value: float
) -> None:
    name = trained.backed_up(value).name
    with pytest.raises(SyncerError, match="has no complete and undamaged backup"):
        restored(trained, tmp_path, type=begins)
    trained.backed_up(1.0)
    trained.backed_up(value)
    assert value_of(restored(trained, tmp_path, type=begins)) == 1.0
    assert f"its values go from {value:g} to {value:g}" in caplog.text
    with pytest.raises(SyncerError, match=f"has no undamaged backup {name}"):
        restored(trained, tmp_path / "third", type=begins, backup=name, url=str(tmp_path / "kept"))


def test_an_exported_model_that_cannot_be_trained_on_is_refused(trained: Trained, tmp_path: Path) -> None:
    layout = trained.beginning.layout
    parameters = [torch.full((fragment.numel,), 1e30) for fragment in layout.fragments]
    file = tmp_path / "model.safetensors"
    export(trained.job, layout, parameters, 1, file)
    with pytest.raises(SyncerError, match=r"model.safetensors: fragment 0: its values go from 1e\+30 to 1e\+30"):
        restored(trained, tmp_path, type="Weights", url=str(file))


def test_an_object_store_without_folders_works_alike(trained: Trained, tmp_path: Path) -> None:
    store = trained.store = in_memory(tmp_path.name)
    made = [trained.backed_up(float(value), keep=2) for value in range(3)]
    assert trained.kept == [one.name for one in made[1:]]
    assert fetched(trained, tmp_path).name == "000003"
    with pytest.raises(StoreError, match="memory://kept: none cannot be read"):
        store.read("none", 10)


@pytest.mark.parametrize("url", ["s3://kept", "gs://kept/mine"])
def test_a_bucket_without_its_package_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.fsspec", None)
    with pytest.raises(StoreError, match="needs the package obstore, which is not installed; install it"):
        open_store(url)


@pytest.mark.parametrize("content", [b"{}", b" " * (LIMIT_BYTES + 1)])
def test_a_damaged_manifest_keeps_no_backup_from_being_made(trained: Trained, tmp_path: Path, content: bytes) -> None:
    trained.backed_up(1.0)
    damaged = trained.backed_up(2.0).name
    (tmp_path / "kept" / f"{damaged}.json").write_bytes(content)
    third = trained.backed_up(3.0, keep=2).name
    assert trained.kept == [damaged, third]
