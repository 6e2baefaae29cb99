"""Of the syncers that upload to one folder at most one goes on, and none deletes what another wrote."""

from collections.abc import Callable
from pathlib import Path

import pytest

from diloco.runtime.object_store import ObjectStore, StoreError
from diloco.syncer.backup.ownership import NotOursError
from tests.support.backups import TRAINING, Trained, in_namespace, job_of

ELSEWHERE = "e" * 16
"""Id of a directory into which a backup was restored."""
ANEW = "f" * 16
"""Id of a training that began from zero."""


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return Trained(tmp_path / "first", in_namespace("prod"))


def other_job(folder: Path) -> Trained:
    return Trained(folder, in_namespace("prod", job_of("other")), training=ANEW)


def other_namespace(folder: Path) -> Trained:
    return Trained(folder, in_namespace("staging"), training=ANEW)


def restored_in_another_namespace(folder: Path) -> Trained:
    return Trained(folder, in_namespace("staging"), writer=ELSEWHERE)


def other_training(folder: Path) -> Trained:
    return Trained(folder, in_namespace("prod"), training=ANEW)


def restored(folder: Path) -> Trained:
    return Trained(folder, in_namespace("prod"), writer=ELSEWHERE)


def copy_of_the_directory(folder: Path) -> Trained:
    return Trained(folder, in_namespace("elsewhere"))


IN_USE = "has backups of job 'made' in namespace 'prod'; use a folder for 'made' in namespace 'staging' alone"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            other_job,
            "has backups of job 'made' in namespace 'prod'; use a folder for 'other' in namespace 'prod' alone",
        ),
        (other_namespace, IN_USE),
        (restored_in_another_namespace, IN_USE),
        (other_training, r"of another training of this job; use another folder, or begin the job with spec\.initFrom"),
    ],
)
def test_a_folder_that_is_in_use_is_refused(
    trained: Trained, tmp_path: Path, make: Callable[[Path], Trained], said: str
) -> None:
    trained.backed_up(1.0)
    later = make(tmp_path / "later")
    for _ in range(2):
        with pytest.raises(NotOursError, match=rf"spec\.syncer\.backup\.url: .*{said}"):
            later.backed_up(2.0)
        trained.restarted()
        trained.backed_up(3.0)
    assert len(trained.store.names()) == 2 * 3


def test_a_job_without_a_namespace_goes_on_with_any(trained: Trained, tmp_path: Path) -> None:
    """As ``diloco run`` with a manifest that names none."""
    trained.backed_up(1.0)
    here = Trained(tmp_path / "second", job_of(), writer=ELSEWHERE)
    here.backed_up(2.0)
    here.backed_up(3.0)


@pytest.mark.parametrize("make", [other_job, other_training, restored, copy_of_the_directory])
@pytest.mark.parametrize("restarts", [True, False])
def test_of_two_that_upload_at_once_one_goes_on(
    trained: Trained, tmp_path: Path, make: Callable[[Path], Trained], *, restarts: bool
) -> None:
    other, started = make(tmp_path / "other"), False

    def go_on(_: int) -> bool:
        """In the middle of the first: both find the folder empty."""
        nonlocal started
        if not started:
            started = True
            other.backed_up(5.0)
        return True

    trained.upload(trained.checkpoint(1.0), go_on)
    refused: dict[str, str] = {}
    for value in range(3):
        for one in (trained, other):
            if restarts and make is not copy_of_the_directory:
                one.restarted()
            try:
                one.backed_up(float(value), keep=1)
            except NotOursError as error:
                refused[str(one.checkpoints)] = str(error)
    (told,) = refused.values()
    assert "which another syncer has made since" in told
    kept = {name.partition("-")[2] for name in trained.kept}
    assert len(kept) == (1 if make is copy_of_the_directory else 2)


@pytest.mark.parametrize("make", [restored, copy_of_the_directory])
def test_one_that_was_gone_on_from_is_refused(
    trained: Trained, tmp_path: Path, make: Callable[[Path], Trained]
) -> None:
    first = trained.backed_up(1.0).name
    later = make(tmp_path / "later")
    newest = later.backed_up(5.0).name
    for value in range(3):
        with pytest.raises(NotOursError, match=f"has backup {newest}, which another syncer has made since"):
            trained.backed_up(2.0)
        newest = later.backed_up(float(value)).name
    # As the message says.
    for name in [one for one in trained.store.names() if one > f"{first}.json"]:
        trained.store.delete(name)
    trained.backed_up(3.0)


def test_an_upload_whose_end_is_not_known_is_ones_own(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    trained.backed_up(1.0)
    write = ObjectStore.write

    def lost(store: ObjectStore, name: str, content: bytes) -> None:
        write(store, name, content)
        raise StoreError("the answer was lost")

    monkeypatch.setattr(ObjectStore, "write", lost)
    with pytest.raises(StoreError, match="the answer was lost"):
        trained.backed_up(2.0)
    monkeypatch.undo()
    trained.backed_up(3.0)
    assert len(trained.kept) == 3


def test_only_ones_own_are_deleted(trained: Trained, tmp_path: Path) -> None:
    begun = f"20200101T000000Z-{{}}-000001-{{}}{'0' * 8}"
    of_original, of_copy = begun.format(TRAINING, TRAINING[:8]), begun.format(TRAINING, "e" * 8)
    of_other = begun.format(ANEW, ANEW[:8])
    for part in (of_original, of_copy, of_other):
        trained.store.write(f"{part}/00000.safetensors", b"half")
    originals = [trained.backed_up(float(value)).name for value in range(3)]
    later = restored(tmp_path / "later")
    for value in range(3):
        newest = later.backed_up(float(value), keep=1).name
    assert trained.kept == [*originals, newest]
    assert set(trained.store.names()) == {of_other, *(one + end for one in trained.kept for end in ("", ".json"))}


def test_a_copy_uploads_a_checkpoint_that_the_original_has(trained: Trained, tmp_path: Path) -> None:
    """The original deletes its own, so the copy cannot rely on it."""
    name = trained.checkpoint(1.0)
    first = trained.upload(name)
    again = restored(tmp_path / "later").uploader.upload(trained.store, trained.source(name), 3, lambda _: True)
    assert trained.kept == [first.name, again.name]
