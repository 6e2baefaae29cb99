import errno
import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diloco.core.fragments import Layout, TensorSpec, partition
from diloco.core.merge.member_sizes import UsualSize
from diloco.runtime.files import UnusableFileError, sha256_bytes
from diloco.spec.outer_choice import DILOCO, OuterChoice
from diloco.spec.status.syncer import BytesByKind, RegionBytes
from diloco.syncer.disk.checkpoint import (
    CheckpointContent,
    CheckpointManifest,
    LoadedCheckpoint,
    SavedCheckpoint,
    load_checkpoint,
    newest_checkpoint,
    write_checkpoint,
)
from diloco.syncer.disk.checkpoint_names import checkpoint_names, prune_checkpoints, set_aside
from diloco.syncer.errors import SyncerError
from diloco.syncer.store import FragmentStore
from tests.support.damage import DAMAGES
from tests.support.machine_limits import files_of_at_most
from tests.support.watched_disk import watch_disk


def layout_of(*sizes: int) -> Layout:
    return partition([TensorSpec(f"t{i}", (size,), embedding=False) for i, size in enumerate(sizes)], len(sizes))


LAYOUT = layout_of(1000, 500)
MOVED = (RegionBytes(region="east", up=BytesByKind(bulk=5), down=BytesByKind(again=6)),)
OUTER = OuterChoice(optimizer=DILOCO, reason="it lasts")


def content(
    version: int = 3,
    layout: Layout = LAYOUT,
    job: str = "small",
    *,
    residuals: bool = False,
    base: SavedCheckpoint | None = None,
    newer: int = 0,
) -> CheckpointContent:
    """What a checkpoint is made of; the last fragment is by ``newer`` versions ahead of the first one."""
    store = FragmentStore(layout, residuals=residuals)
    for fragment in layout.fragments:
        made = version + newer * fragment.index
        values = torch.arange(fragment.numel, dtype=torch.float32) + made
        store.put(fragment.index, made, values, values / 3, values / 7 if residuals else None)
        store.set_usual(fragment.index, UsualSize(version, 0.5, (0.25, 0.75)))
    engine = {"losses": {"a": math.nan, "b": [math.inf, -math.inf]}, "n": 1}
    return CheckpointContent(job, layout, 2, store.hold(), engine, OUTER, "a test", MOVED, base=base)


def newest(
    directory: Path, layout: Layout = LAYOUT, job: str = "small"
) -> tuple[LoadedCheckpoint | None, dict[str, str]]:
    return newest_checkpoint(directory, layout, job, lambda _folder, _manifest: None)


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    name = write_checkpoint(tmp_path, content()).name
    loaded, broken = newest(tmp_path)
    assert loaded is not None
    assert not broken
    assert (name, loaded.name, loaded.manifest.versions) == ("000001", "000001", (3, 3))
    assert repr(loaded.manifest.engine) == repr(content().engine)  # as text, since NaN differs from itself
    assert (loaded.manifest.outer, loaded.manifest.bytes_by_region) == (OUTER, MOVED)
    assert loaded.manifest.usual == (UsualSize(3, 0.5, (0.25, 0.75)),) * 2
    image = content().image
    for index, fragment in enumerate(image.fragments):
        assert torch.equal(loaded.parameters[index], fragment.parameters)
        assert torch.equal(loaded.fragments[index].momentum, image.momentum[index])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tensors": [[]]}, "its tensors are of no model (a fragment without tensors, or two tensors of one name)"),
        ({"tensors": [[["t", [1 << 40, 1 << 40], False]]]}, f"its tensors are of no model ({1 << 80} parameters)"),
        ({"tensors": [[["t", [8], False]]]}, "its layout is not that of its tensors"),
        ({"layout": "0" * 64}, "its layout is not that of its tensors"),
        ({"usual": [{"merges": 1, "size": 1.0}]}, "its usual sizes are not those of its tensors"),
        ({"usual": [{"merges": 1, "size": -1.0}] * 2}, "its usual sizes are not those of its tensors"),
        (
            {"usual": [{"merges": 1, "size": 1.0, "standards": [1.0]}] * 2},
            "its usual sizes are not those of its tensors",
        ),
    ],
)
def test_one_that_lies_about_its_layout_is_passed_over(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    for _ in range(2):
        write_checkpoint(tmp_path, content())
    path = tmp_path / "000002" / "manifest.json"
    manifest = json.loads(path.read_text())["manifest"] | changes
    digest = sha256_bytes(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode())
    path.write_text(json.dumps({"sha256": digest, "manifest": manifest}))
    loaded, broken = newest(tmp_path)
    assert loaded is not None
    assert loaded.name == "000001"
    assert broken == {"000002": f"{path}: {why}"}


def test_residuals_come_back_as_they_were(tmp_path: Path) -> None:
    first = write_checkpoint(tmp_path, content())
    second = write_checkpoint(tmp_path, content(residuals=True, base=first))
    without, residuals = (load_checkpoint(tmp_path, one.name, LAYOUT, "small") for one in (first, second))
    assert all(one.residual is None for one in without.fragments)
    for index, residual in enumerate(content(residuals=True).image.residuals):
        found = residuals.fragments[index].residual
        assert found is not None
        assert torch.equal(found, residual)


def files_of(checkpoint: Path) -> list[int]:
    """Which files it has on the disk, whatever their names."""
    return [path.stat().st_ino for path in sorted(checkpoint.glob("*.safetensors"))]


def test_what_has_not_changed_is_shared_and_what_has_is_written(tmp_path: Path) -> None:
    first = write_checkpoint(tmp_path, content())
    changed = content(newer=2, base=first)
    changed.image.momentum[0].fill_(math.nan)  # a merge may write to what is not held
    second = write_checkpoint(tmp_path, changed)
    before, after = (files_of(tmp_path / one.name) for one in (first, second))
    assert [ours == theirs for ours, theirs in zip(before, after, strict=True)] == [True, False]
    prune_checkpoints(tmp_path, 1, frozenset({first.name}))
    shutil.rmtree(tmp_path / first.name)
    loaded, broken = newest(tmp_path)
    assert loaded is not None
    assert not broken
    assert loaded.manifest.versions == (3, 5)
    for fragment, tensors in enumerate(loaded.fragments):
        assert tensors.momentum[0] == loaded.manifest.versions[fragment] / 3


def test_a_disk_without_hard_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "it has no hard links")

    monkeypatch.setattr(os, "link", refused)
    first = write_checkpoint(tmp_path, content())
    second = write_checkpoint(tmp_path, content(base=first))
    assert set(files_of(tmp_path / first.name)).isdisjoint(files_of(tmp_path / second.name))
    assert load_checkpoint(tmp_path, second.name, LAYOUT, "small").manifest.versions == (3, 3)


def test_a_base_that_somebody_deleted_is_no_checkpoint(tmp_path: Path) -> None:
    first, second = (write_checkpoint(tmp_path, content()) for _ in range(2))
    shutil.rmtree(tmp_path / second.name)
    with pytest.raises(FileNotFoundError):
        write_checkpoint(tmp_path, content(base=second))
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


def resealed(path: Path, **changes: object) -> None:
    """Change a manifest together with its digest."""
    plain = json.loads(path.read_text())["manifest"] | changes
    sealed = sha256_bytes(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())
    path.write_text(json.dumps({"sha256": sealed, "manifest": plain}))


@pytest.mark.parametrize("epoch", [-1, 1 << 43])
def test_a_checkpoint_of_an_epoch_that_no_message_can_hold_is_passed_over(tmp_path: Path, epoch: int) -> None:
    write_checkpoint(tmp_path, content(3))
    resealed(tmp_path / write_checkpoint(tmp_path, content(4)).name / "manifest.json", epoch=epoch)
    loaded, broken = newest(tmp_path)
    assert loaded is not None
    assert loaded.manifest.versions == (3, 3)
    assert "not a checkpoint's manifest" in broken["000002"]


def test_a_checkpoint_of_a_later_version_is_refused_and_not_called_damaged(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, content())
    resealed(tmp_path / write_checkpoint(tmp_path, content()).name / "manifest.json", format=3, new="field")
    with pytest.raises(SyncerError, match="format is 3; this version of diloco reads 1; use the") as refused:
        newest(tmp_path)
    assert "\n" not in str(refused.value)


def made_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("file", ["manifest.json", "00000.safetensors", "00001.safetensors"])
@pytest.mark.parametrize("damage", [*DAMAGES.values(), made_a_pipe], ids=[*DAMAGES, "a pipe"])
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(
    tmp_path: Path, file: str, damage: Callable[[Path], object]
) -> None:
    write_checkpoint(tmp_path, content(3, residuals=True))
    path = tmp_path / write_checkpoint(tmp_path, content(4, residuals=True)).name / file
    damage(path)
    loaded, broken = newest(tmp_path)
    assert loaded is not None
    assert loaded.manifest.versions == (3, 3)
    assert str(path) in broken["000002"]


@pytest.mark.parametrize("value", [math.nan, -math.inf, 1e30])
@pytest.mark.parametrize("name", ["parameters", "momentum", "residual"])
def test_one_that_cannot_be_trained_on_gives_way_to_the_one_before(tmp_path: Path, name: str, value: float) -> None:
    write_checkpoint(tmp_path, content(3, residuals=True))
    spoilt = content(4, residuals=True)
    of_fragment = {
        "parameters": spoilt.image.fragments[1].parameters,
        "momentum": spoilt.image.momentum[1],
        "residual": spoilt.image.residuals[1],
    }
    of_fragment[name][7] = value
    path = tmp_path / write_checkpoint(tmp_path, spoilt).name / "00001.safetensors"
    loaded, broken = newest(tmp_path)
    assert loaded is not None
    assert loaded.manifest.versions == (3, 3)
    assert broken["000002"].startswith(f"{path}: {name}: its values go from ")


def test_a_checkpoint_of_another_model_or_job_names_both(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, content())
    with pytest.raises(SyncerError, match=r"1500 parameters in 2 fragments.*1501 parameters in 2 fragments"):
        newest(tmp_path, layout_of(1000, 501))
    with pytest.raises(SyncerError, match="of job 'small', not of 'large'"):
        newest(tmp_path, job="large")


def test_one_with_other_frozen_values_is_refused(tmp_path: Path) -> None:
    ours, other = replace(LAYOUT, constants="base"), replace(LAYOUT, constants="other")
    write_checkpoint(tmp_path, content(layout=other))
    with pytest.raises(SyncerError, match="other frozen parameters or buffers than the job's; use"):
        newest(tmp_path, ours)


@pytest.mark.parametrize("residuals", [False, True])
def test_a_write_that_fails_in_the_middle_leaves_nothing_behind(tmp_path: Path, *, residuals: bool) -> None:
    write_checkpoint(tmp_path, content(3))
    with files_of_at_most(3000), pytest.raises(OSError, match="too large"):
        write_checkpoint(tmp_path, content(4, residuals=residuals))
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]


def test_leftovers_of_a_killed_writer_are_no_checkpoint_and_go(tmp_path: Path) -> None:
    (tmp_path / ".000007.part").mkdir()
    (tmp_path / ".000007.part" / "00000.safetensors").write_bytes(b"half")
    assert checkpoint_names(tmp_path) == []
    write_checkpoint(tmp_path, content())
    assert [path.name for path in tmp_path.iterdir()] == ["000001"]


def test_of_all_but_the_newest_and_those_spared_nothing_is_left(tmp_path: Path) -> None:
    for version in range(6):
        write_checkpoint(tmp_path, content(version))
    prune_checkpoints(tmp_path, 2, frozenset({"000002"}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000002", "000005", "000006"]


def test_one_that_shares_no_file_with_the_newest_is_kept(tmp_path: Path) -> None:
    """Six fragments are merged in turn, with a checkpoint after each merge: whatever is damaged, one is whole."""
    layout, saved = layout_of(*[100] * 6), None
    store = FragmentStore(layout)
    for fragment in range(6):
        store.put(fragment, 0, torch.zeros(100))
    for turn in range(20):
        store.put(turn % 6, turn + 1, torch.full((100,), float(turn)))
        saved = write_checkpoint(
            tmp_path, CheckpointContent("small", layout, 2, store.hold(), {}, OUTER, "", base=saved)
        )
        prune_checkpoints(tmp_path, 2, frozenset())
        names = checkpoint_names(tmp_path)
        assert names[-1] == saved.name
        assert len(names) <= 3
        if turn >= 6:
            assert set(files_of(tmp_path / names[0])).isdisjoint(files_of(tmp_path / names[-1]))


def test_the_number_of_a_broken_one_is_not_given_again(tmp_path: Path) -> None:
    for version in range(3):
        write_checkpoint(tmp_path, content(version))
    set_aside(tmp_path, ["000003"])
    set_aside(tmp_path, ["000002"])
    assert write_checkpoint(tmp_path, content()).name == "000004"
    assert (tmp_path / "000003.broken").is_dir()
    (tmp_path / "000004").rename(tmp_path / "000004.broken")
    set_aside(tmp_path, ["000001"])
    assert write_checkpoint(tmp_path, content()).name == "000005"


def test_checkpoints_are_ordered_by_number_however_many_digits_it_has(tmp_path: Path) -> None:
    for name in ("1000000", "999999", "999998"):
        (tmp_path / name).mkdir()
    (tmp_path / "12345").mkdir()
    assert checkpoint_names(tmp_path) == ["999998", "999999", "1000000"]
    assert write_checkpoint(tmp_path, content()).name == "1000001"
    prune_checkpoints(tmp_path, 1, frozenset())
    assert checkpoint_names(tmp_path) == ["1000001"]


def test_a_checkpoint_gets_its_name_when_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "syncer" / "checkpoints"
    done = watch_disk(monkeypatch)
    first = write_checkpoint(folder, content())
    ends = [("forced", "manifest.json"), ("forced", ".")]
    assert [(what, name) for what, name, _ in done] == [
        ("forced", "00000.safetensors"),
        ("forced", "00001.safetensors"),
        *ends,
        ("named", "000001"),
        ("forced", "checkpoints"),
    ]
    assert [content for _, _, content in done[:3]] == [
        (folder / "000001" / name).read_bytes() for name in ("00000.safetensors", "00001.safetensors", "manifest.json")
    ]
    done.clear()
    write_checkpoint(folder, content(newer=1, base=first))
    assert [(what, name) for what, name, _ in done] == [
        ("forced", "00001.safetensors"),
        *ends,
        ("named", "000002"),
        ("forced", "checkpoints"),
    ]


@pytest.mark.parametrize("text", ["[]", "{}", '{"sha256": "", "manifest": {}, "more": 1}'])
def test_a_manifest_of_another_shape_is_broken(tmp_path: Path, text: str) -> None:
    write_checkpoint(tmp_path, content())
    manifest = tmp_path / "000001" / "manifest.json"
    manifest.write_text(text)
    assert newest(tmp_path) == (None, {"000001": f"{manifest}: not a checkpoint's manifest"})


def test_one_that_nothing_can_go_on_from_is_passed_over(tmp_path: Path) -> None:
    for version in (3, 4):
        write_checkpoint(tmp_path, content(version))

    def check(folder: Path, manifest: CheckpointManifest) -> None:
        if manifest.versions == (4, 4):
            raise UnusableFileError(f"{folder}: no")

    loaded, broken = newest_checkpoint(tmp_path, LAYOUT, "small", check)
    assert loaded is not None
    assert (loaded.name, broken) == ("000001", {"000002": f"{tmp_path / '000002'}: no"})


def test_of_those_set_aside_only_the_highest_stays(tmp_path: Path) -> None:
    for name in ("000003", "000005", "000002.broken", "000004.broken", "000006.broken"):
        (tmp_path / name).mkdir()
    set_aside(tmp_path, ["000003", "000005"])
    assert [path.name for path in tmp_path.iterdir()] == ["000006.broken"]


def test_what_cannot_be_removed_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".000009.part", "000001.broken"):
        (tmp_path / name).write_text("no folder")
    name = write_checkpoint(tmp_path, content()).name
    set_aside(tmp_path, [name])
    assert name == "000002"
    assert (tmp_path / "000002.broken").is_dir()

    def gone(path: Path, *_: Path) -> None:
        shutil.rmtree(path.parent)
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr("diloco.syncer.disk.checkpoint.fsync", gone)
    with pytest.raises(OSError, match="the disk is gone"):
        write_checkpoint(tmp_path, content())
