"""Backups in a bucket of a real S3 server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from diloco.runtime.object_store import ObjectStore, StoreError, open_store
from diloco.spec.backup import InitFrom
from diloco.syncer.backup.manifest import complete
from diloco.syncer.prepare import prepare
from tests.support.backups import Moved, Trained, beginning_from
from tests.support.s3_server import s3_server

pytestmark = pytest.mark.processes


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its address."""
    with s3_server(monkeypatch) as address:
        yield address


def test_a_backup_in_a_bucket_is_pruned_and_restored(server: str, tmp_path: Path) -> None:
    store = open_store("s3://kept/mine", server)
    trained = Trained(tmp_path / "first", store=store)
    made = [trained.backed_up(float(value), keep=2).name for value in range(3)]
    assert [str(one) for one in complete(store.names())] == made[1:]
    assert sorted(store.names()) == sorted([*made[1:], *(f"{name}.json" for name in made[1:])])
    moved = Moved()
    newest = trained.upload(trained.checkpoint(5.0, first=1), moved.go_on)
    changed = newest.size_bytes - newest.files["00000.safetensors"].size_bytes
    assert sum(moved) == changed, "the bucket copies what has not changed"
    begins = InitFrom(url="s3://kept/mine", endpoint=server)
    state = prepare(beginning_from(trained.job, begins), tmp_path / "second" / "checkpoints")
    assert float(state.store.current(0).parameters[0]) == 2.0


def test_a_file_of_several_parts_arrives_whole(server: str, tmp_path: Path) -> None:
    store, source = open_store("s3://kept/mine", server), tmp_path / "large"
    source.write_bytes(bytes(range(256)) * (90_000))  # 23 MB: three parts
    digest = store.upload(source, "x/large", lambda _: True)
    assert store.download("x/large", tmp_path / "back", source.stat().st_size) == digest
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    with pytest.raises(StoreError, match="x/large is larger than 1000 bytes"):
        store.download("x/large", tmp_path / "back", 1000)


def test_a_bucket_that_is_not_there_is_named(server: str, tmp_path: Path) -> None:
    trained = Trained(tmp_path / "first", store=open_store("s3://none/mine", server))
    with pytest.raises(StoreError, match=r"s3://none/mine: .*cannot be (listed|written|found)"):
        trained.backed_up(1.0)


def test_a_store_that_does_not_answer_is_named(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    del server
    monkeypatch.setattr("diloco.runtime.object_store._RETRY_SECONDS", 1)
    store: ObjectStore = open_store("s3://kept/mine", "http://127.0.0.1:1")
    with pytest.raises(StoreError, match="s3://kept/mine: cannot be listed"):
        store.names()
