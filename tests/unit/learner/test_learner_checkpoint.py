import errno
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from diloco.learner.checkpoint import CheckpointIdentity, CheckpointStore, CheckpointWriteError, LearnerCheckpoint
from diloco.learner.exchange.residuals import Residual
from diloco.learner.training.fragment_trainer import TrainerState
from tests.support.damage import DAMAGES
from tests.support.machine_limits import files_of_at_most
from tests.support.watched_disk import watch_disk

IDENTITY = CheckpointIdentity("job", "here/cpu/0", "0123456789abcdef.base", "AdamW")


def checkpoint(steps: int, numel: int = 5) -> LearnerCheckpoint:
    moments = {"exp_avg.a.weight": torch.full((2, 3), float(steps)), "exp_avg_sq.a.weight": torch.ones(2, 3)}
    state = TrainerState(moments, steps - 1, steps, steps * 64, steps * 4)
    return LearnerCheckpoint(state, {3: Residual(5, torch.arange(float(numel)))})


def steps_found(store: CheckpointStore) -> int | None:
    """By the next process."""
    found = CheckpointStore(store._directory, IDENTITY).load()
    return None if found is None else found.state.steps


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store._directory.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path, IDENTITY)


def test_what_was_saved_is_loaded(store: CheckpointStore) -> None:
    saved = replace(checkpoint(7), training="0011223344556677")
    store.save(saved)
    loaded = store.load()
    assert loaded is not None
    assert loaded.training == "0011223344556677"
    assert replace(loaded.state, tensors={}) == replace(saved.state, tensors={})
    assert loaded.state.tensors.keys() == saved.state.tensors.keys()
    assert all(torch.equal(loaded.state.tensors[name], tensor) for name, tensor in saved.state.tensors.items())
    assert loaded.residuals.keys() == {3}
    assert loaded.residuals[3].version == 5
    assert torch.equal(loaded.residuals[3].values, saved.residuals[3].values)


def test_where_nothing_was_saved_there_is_nothing(store: CheckpointStore, tmp_path: Path) -> None:
    assert steps_found(store) is None
    assert steps_found(CheckpointStore(tmp_path / "missing", IDENTITY)) is None


def test_the_newest_is_used_and_two_are_kept(store: CheckpointStore) -> None:
    for steps in (1, 2, 3):
        store.save(checkpoint(steps))
    assert names(store) == ["00000002", "00000003"]
    assert steps_found(store) == 3


UNUSABLE: dict[str, Callable[[Path], object]] = DAMAGES | {"no object": lambda path: path.write_bytes(b"[]")}


@pytest.mark.parametrize("file", ["state.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", UNUSABLE.values(), ids=UNUSABLE)
def test_a_damaged_newest_falls_back_to_the_one_before(
    store: CheckpointStore, file: str, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    store.save(checkpoint(1))
    damage(store.save(checkpoint(2)) / file)
    assert steps_found(store) == 1
    (record,) = caplog.records
    assert "ignoring checkpoint" in record.getMessage()
    assert "00000002: " in record.getMessage()


def test_a_half_written_one_is_not_seen_and_is_cleared_away(store: CheckpointStore, tmp_path: Path) -> None:
    store.save(checkpoint(1))
    aside = tmp_path / ".part-crashed"
    aside.mkdir()
    (aside / "state.safetensors").write_bytes(b"half")
    assert steps_found(store) == 1
    store.save(checkpoint(2))
    assert names(store) == ["00000001", "00000002"]


def test_a_damaged_one_is_dropped_before_a_whole_one(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, IDENTITY)
    store.save(checkpoint(1))
    (store.save(checkpoint(2)) / "state.safetensors").write_bytes(b"damaged")
    restarted = CheckpointStore(tmp_path, IDENTITY)
    assert restarted.load() is not None
    restarted.save(checkpoint(3))
    assert names(store) == ["00000001", "00000003"]


def test_a_full_disk_is_reported_and_leaves_the_one_before(store: CheckpointStore) -> None:
    store.save(checkpoint(1))
    with (
        files_of_at_most(10_000),
        pytest.raises(CheckpointWriteError, match="cannot write the checkpoint") as raised,
    ):
        store.save(checkpoint(2, numel=100_000))
    assert "\n" not in str(raised.value)
    assert names(store) == ["00000001"]
    assert steps_found(store) == 1
    store.save(checkpoint(3))
    assert steps_found(store) == 3


def test_a_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointWriteError, match=r"cannot write the checkpoint in .*file "):
        CheckpointStore(tmp_path / "file", IDENTITY).save(checkpoint(1))


def test_a_tensor_that_cannot_be_written_is_reported(store: CheckpointStore) -> None:
    state = TrainerState({"exp_avg.a.weight": torch.zeros(2, dtype=torch.complex128)}, 1, 1, 64, 4)
    with pytest.raises(CheckpointWriteError, match=r"cannot write the checkpoint in .*complex128"):
        store.save(LearnerCheckpoint(state, {}))


@pytest.mark.parametrize(
    ("change", "message", "kept"),
    [
        ({"job": "other"}, "it is of job job, this is job other", True),
        ({"learner": "other"}, "it is of learner here/cpu/0, this is learner other", True),
        ({"optimizer": "other"}, "it is of inner optimizer AdamW, this is inner optimizer other", False),
        ({"layout_digest": "other"}, "it is of another model (layout 0123456789ab, this one is other)", False),
        (
            {"layout_digest": "0123456789abcdef.other"},
            "it is of a model with other frozen parameters or buffers",
            False,
        ),
    ],
)
def test_those_of_another_identity_are_ignored_with_one_line(
    store: CheckpointStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: dict[str, str],
    message: str,
    *,
    kept: bool,
) -> None:
    theirs = [store.save(checkpoint(step)).name for step in (1, 2)]
    other = CheckpointStore(store._directory, replace(IDENTITY, **change))
    assert other.load() is None
    assert [record.getMessage() for record in caplog.records] == [
        f"ignoring checkpoint {tmp_path / '00000002'}: {message}"
    ]
    # Those of another job or learner are not ours to remove; the others only take room.
    ours = [other.save(checkpoint(step)).name for step in (3, 4, 5)][-2:]
    assert names(store) == sorted([*(theirs if kept else ()), *ours])
    found = other.load()
    assert found is not None
    assert found.state.steps == 5
    assert steps_found(store) == (2 if kept else None)


def test_one_of_another_learner_hides_none_of_its_own(store: CheckpointStore) -> None:
    store.save(checkpoint(1))
    CheckpointStore(store._directory, replace(IDENTITY, learner="here/cpu/1")).save(checkpoint(2))
    assert steps_found(store) == 1


class TestTrainings:
    @pytest.mark.parametrize(
        ("before", "now", "removed"), [("a", "b", True), ("a", "a", False), ("", "b", False), ("a", "", False)]
    )
    def test_only_those_known_to_be_of_another_are_removed(
        self, store: CheckpointStore, before: str, now: str, *, removed: bool
    ) -> None:
        store.save(replace(checkpoint(1), training=before))
        store.save(replace(checkpoint(2), training=now))
        # The number of one that is removed is free again.
        assert names(store) == (["00000001"] if removed else ["00000001", "00000002"])

    def test_those_of_another_make_room_for_the_first_of_this_one(
        self, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for step in (1, 2):
            store.save(replace(checkpoint(step), training="a"))
        there: list[str] = []
        make: Callable[..., str] = tempfile.mkdtemp

        def made(**named: Any) -> str:
            there.extend(names(store))
            return make(**named)

        monkeypatch.setattr(tempfile, "mkdtemp", made)
        store.save(replace(checkpoint(3), training="b"))
        assert there == []


def test_a_manifest_of_another_format_is_not_used(store: CheckpointStore, caplog: pytest.LogCaptureFixture) -> None:
    path = store.save(checkpoint(1)) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 2}))
    assert steps_found(store) is None
    assert "format is 2; this version of diloco reads 1; use the version that wrote it" in caplog.text


def rewrite_manifest(path: Path, **changes: object) -> None:
    """Rewrite the manifest, with a matching digest."""
    manifest = json.loads((path / "manifest.json").read_text()) | changes
    del manifest["digest"]
    manifest["digest"] = sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_a_checkpoint_gets_its_name_when_it_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "learner" / "checkpoints"
    done = watch_disk(monkeypatch)
    place = CheckpointStore(folder, IDENTITY).save(checkpoint(1))
    assert [(what, name) for what, name, _ in done] == [
        ("forced", "state.safetensors"),
        ("forced", "."),
        ("named", "manifest.json"),
        ("forced", "."),
        ("named", place.name),
        ("forced", "checkpoints"),
    ]
    assert done[0][2] == (place / "state.safetensors").read_bytes()


@pytest.mark.parametrize("counter", ["optimizer_steps", "steps", "tokens", "data_position"])
@pytest.mark.parametrize(("value", "used"), [(0, 2), (-1, 1), ("7", 1), (None, 1)])
def test_counters_that_cannot_be_make_a_checkpoint_unusable(
    store: CheckpointStore, counter: str, value: object, used: int
) -> None:
    for residual in (1, 2):
        newest = store.save(LearnerCheckpoint(checkpoint(9).state, {residual: Residual(1, torch.zeros(1))}))
    rewrite_manifest(newest, **{counter: value})
    loaded = CheckpointStore(store._directory, IDENTITY).load()
    assert loaded is not None
    assert list(loaded.residuals) == [used]


@pytest.mark.parametrize(("size_bytes", "steps"), [(1 << 20, 2), ((1 << 20) + 1, 1)])
def test_a_manifest_of_more_than_a_mebibyte_is_not_read(store: CheckpointStore, size_bytes: int, steps: int) -> None:
    store.save(checkpoint(1))
    manifest = store.save(checkpoint(2)) / "manifest.json"
    manifest.write_text(manifest.read_text().ljust(size_bytes))
    assert steps_found(store) == steps


def test_what_cannot_be_removed_stops_no_checkpoint(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    (tmp_path / ".part-of-somebody").write_text("no folder")
    for steps in (1, 2):
        store.save(checkpoint(steps))
    monkeypatch.setattr(os, "rmdir", busy)
    store.save(checkpoint(3))
    assert steps_found(store) == 3


def test_a_tensor_of_an_impossible_name_makes_a_checkpoint_unusable(store: CheckpointStore) -> None:
    store.save(checkpoint(4))
    newest = store.save(checkpoint(5))
    save_file({"residual.first": torch.ones(1)}, newest / "state.safetensors")
    rewrite_manifest(newest, sha256=sha256((newest / "state.safetensors").read_bytes()).hexdigest())
    assert steps_found(store) == 4


def test_a_directory_that_cannot_be_listed_has_no_checkpoints(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.save(checkpoint(4))

    def broken(_: Path) -> Iterator[Path]:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "iterdir", broken)
    assert steps_found(store) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"ignoring the checkpoints in {tmp_path}: OSError: [Errno 5] Input/output error"
    ]
