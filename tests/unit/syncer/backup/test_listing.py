"""Each manifest of a folder is read once, and what is damaged or gone is passed over."""

from pathlib import Path

import pytest

from diloco.runtime.object_store import StoppedError, StoreError
from diloco.syncer.backup.listing import Manifests
from diloco.syncer.backup.manifest import LIMIT_BYTES
from tests.support.backups import Trained


def test_a_manifest_is_read_once_and_forgotten_when_deleted(tmp_path: Path) -> None:
    trained, manifests = Trained(tmp_path / "s"), Manifests()
    first = trained.backed_up(1.0)
    assert list(manifests.listing(trained.store, lambda _: True).backups.values()) == [first]
    second = trained.backed_up(2.0)
    asked: list[int] = []

    def go_on(moved: int) -> bool:
        asked.append(moved)
        return True

    assert list(manifests.listing(trained.store, go_on).backups.values()) == [first, second]
    assert asked == [0]
    trained.store.delete(f"{first.name}.json")
    found = manifests.listing(trained.store, lambda _: pytest.fail("there is nothing new"))
    assert list(found.backups.values()) == [second]
    assert found.names == trained.store.names()


def test_a_damaged_manifest_counts_for_time_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained = Trained(tmp_path / "s")
    first, second = trained.backed_up(1.0), trained.backed_up(2.0)
    (tmp_path / "kept" / f"{second.name}.json").write_bytes(b"{}")
    found = Manifests().listing(trained.store, lambda _: True)
    assert list(found.backups.values()) == [first]
    assert str(found.newest) == second.name
    assert f"backup {second.name}: its manifest is not that of a backup" in caplog.text
    # A new one is newer than it, and it is not deleted: nobody knows whose it is.
    third = trained.backed_up(3.0, keep=1)
    assert trained.kept == [second.name, third.name]


def test_a_manifest_that_is_too_large_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    trained = Trained(tmp_path / "s")
    first, second = trained.backed_up(1.0), trained.backed_up(2.0)
    (tmp_path / "kept" / f"{second.name}.json").write_bytes(b" " * (LIMIT_BYTES + 1))
    assert list(Manifests().listing(trained.store, lambda _: True).backups.values()) == [first]
    trained.backed_up(3.0)


def test_reading_stops_when_told_and_fails_with_the_store(tmp_path: Path) -> None:
    trained, manifests = Trained(tmp_path / "s"), Manifests()
    made = trained.backed_up(1.0)
    with pytest.raises(StoppedError):
        manifests.listing(trained.store, lambda _: False)
    path = tmp_path / "kept" / f"{made.name}.json"
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match="cannot be read"):
        manifests.listing(trained.store, lambda _: True)
