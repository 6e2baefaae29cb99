"""Of two syncers that upload to one folder at most one goes on, and none deletes what another wrote."""

from collections.abc import Callable
from pathlib import Path

import pytest

from diloco.syncer.backup.ownership import JobName, NotOursError
from diloco.syncer.backup.upload import upload_backup
from tests.support.backups import TRAINING, Trained, in_namespace, job_of

ELSEWHERE = "e" * 16
"""Id of a directory into which a backup was restored."""
ANEW = "f" * 16
"""Id of a training that began from zero."""


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return Trained(tmp_path / "first", in_namespace("prod"))


def at_once(one: Trained, other: Trained) -> None:
    """Upload the first backup of ``one``, and in the middle of it that of ``other``: both find the folder empty."""
    started: list[str] = []

    def go_on(_: int) -> bool:
        if not started:
            started.append("other")
            other.backed_up(5.0)
        return True

    one.upload(one.checkpoint(1.0), go_on)
    assert len(one.kept) == 2


def test_a_folder_of_another_namespace_is_refused(trained: Trained, tmp_path: Path) -> None:
    staging = Trained(tmp_path / "other", in_namespace("staging"), training=ANEW)
    staging.backed_up(1.0)
    told = r"has backups of job 'made' in namespace 'staging'; use a folder for 'made' in namespace 'prod' alone"
    with pytest.raises(NotOursError, match=r"spec.syncer.backup.url: .*" + told):
        trained.backed_up(2.0)
    staging.backed_up(3.0)
    assert len(trained.kept) == 2


def test_a_job_without_a_namespace_goes_on_with_any(trained: Trained, tmp_path: Path) -> None:
    """As ``diloco run`` with a manifest that names none."""
    trained.backed_up(1.0)
    here = Trained(tmp_path / "second", job_of(), writer=ELSEWHERE)
    here.backed_up(2.0)
    here.backed_up(3.0)
    assert JobName.of(here.job.metadata) == JobName("made", "")
    assert JobName.of(trained.job.metadata) == JobName("made", "prod")


def other_namespace(folder: Path) -> Trained:
    return Trained(folder, in_namespace("staging"), training=ANEW)


def other_training(folder: Path) -> Trained:
    return Trained(folder, in_namespace("prod"), training=ANEW)


def clone(folder: Path) -> Trained:
    return Trained(folder, in_namespace("prod"), writer=ELSEWHERE)


@pytest.mark.parametrize("make", [other_namespace, other_training])
def test_of_two_that_begin_at_once_the_later_is_refused(
    trained: Trained, tmp_path: Path, make: Callable[[Path], Trained]
) -> None:
    later = make(tmp_path / "later")
    at_once(trained, later)
    with pytest.raises(NotOursError, match=r"spec\.syncer\.backup\.url: "):
        later.backed_up(6.0)
    for value in range(5):  # its first is deleted, and it is the first all the same
        trained.backed_up(float(value))
        with pytest.raises(NotOursError, match=r"spec\.syncer\.backup\.url: "):
            later.backed_up(7.0)
    assert len(trained.kept) == 3 + 1


def test_a_clone_that_begins_at_once_is_refused(trained: Trained, tmp_path: Path) -> None:
    later = clone(tmp_path / "clone")
    at_once(trained, later)
    refused = []
    for one in (trained, later):
        try:
            one.backed_up(3.0)
        except NotOursError as error:
            refused.append(str(error))
    (told,) = refused
    assert (
        "which another syncer has made since this one began to upload there; stop that one and delete its newer" in told
    )


@pytest.mark.parametrize("make", [other_training, clone])
def test_one_that_begins_while_another_uploads_is_refused(
    trained: Trained, tmp_path: Path, make: Callable[[Path], Trained]
) -> None:
    trained.backed_up(1.0)
    later = make(tmp_path / "later")
    # Nothing tells the other from one that has ended, until it uploads again.
    later.backed_up(5.0)
    later.backed_up(6.0)
    newest = trained.backed_up(2.0)
    with pytest.raises(NotOursError, match=f"has backup {newest.name}, which another syncer has made since"):
        later.backed_up(7.0)
    trained.backed_up(3.0)


def test_what_a_mistake_left_does_not_stop_a_restored_job(trained: Trained, tmp_path: Path) -> None:
    trained.backed_up(1.0)
    mistake = Trained(tmp_path / "mistake", in_namespace("prod"), training=ANEW)
    mistake.backed_up(0.0)
    restored = Trained(tmp_path / "second", in_namespace("prod"), writer=ELSEWHERE)
    for value in range(3):
        restored.backed_up(float(value))
    assert len(trained.kept) == 1 + 1 + 3


def test_clone_and_original_delete_only_their_own(trained: Trained, tmp_path: Path) -> None:
    originals = [trained.backed_up(float(value)).name for value in range(3)]
    copy = clone(tmp_path / "clone")
    for value in range(3):
        newest = copy.backed_up(float(value), keep=1).name
    assert trained.kept == [*originals, newest]
    last = trained.backed_up(9.0, keep=1).name
    assert trained.kept == [newest, last]


def test_a_clone_uploads_a_checkpoint_that_the_original_has(trained: Trained, tmp_path: Path) -> None:
    """The original deletes its own, so the clone cannot rely on it."""
    name = trained.checkpoint(1.0)
    first = trained.upload(name)
    owner = clone(tmp_path / "clone").owner
    again = upload_backup(trained.store, owner, trained.source(name), 3, lambda _: True)
    assert first.name != again.name
    assert (first.writer, again.writer) == (TRAINING, ELSEWHERE)


def test_unfinished_uploads_of_another_directory_stay(trained: Trained, tmp_path: Path) -> None:
    begun = "20200101T000000Z-{}-000001-{}"
    of_original, of_clone = begun.format(TRAINING, "0" * 8), begun.format(TRAINING, "eeee0000")
    of_other = begun.format(ANEW, "0" * 8)
    for part in (of_original, of_clone, of_other):
        trained.store.write(f"{part}/00000.safetensors", b"half")
    copy = clone(tmp_path / "clone")
    made = copy.backed_up(1.0).name
    assert set(trained.store.names()) == {of_original, of_other, made, f"{made}.json"}
    own = trained.backed_up(2.0).name
    assert set(trained.store.names()) == {of_other, made, f"{made}.json", own, f"{own}.json"}


def test_a_directory_that_was_moved_goes_on(trained: Trained, tmp_path: Path) -> None:
    """A copy of the volume, in another namespace."""
    trained.backed_up(1.0)
    moved = Trained(tmp_path / "moved", in_namespace("elsewhere"))
    moved.backed_up(2.0)
    moved.backed_up(3.0)
    # Unless the one that it came from goes on too.
    trained.backed_up(4.0)
    with pytest.raises(NotOursError, match="which another syncer has made"):
        moved.backed_up(5.0)
