"""A run's directory as a place for faults: what happens when the run, its directory or the disk goes meanwhile."""

import resource
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from diloco.local.chaos.local_place import LocalPlace
from diloco.local.chaos.orders import Order
from diloco.local.chaos.spec import ChaosError, FaultKind
from diloco.local.directory import DirectoryClaim, RunDirectory
from diloco.local.journal import Journal
from tests.support.small_manifest import SMALL_MANIFEST

KILL = Order(0.0, FaultKind.KILL, "east/a/0", ("east/a/0",))


def begun(root: Path) -> DirectoryClaim:
    """What a run that goes on has in its directory, without its processes."""
    directory = RunDirectory(root)
    root.mkdir()
    directory.job.write_text(SMALL_MANIFEST, encoding="utf-8")
    Journal(directory.journal).write("run", relayed=[])
    return DirectoryClaim(directory)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def place(root: Path) -> Iterator[LocalPlace]:
    claim = begun(root)
    with closing(LocalPlace(root)) as made:
        made.begin()
        yield made
    claim.release()


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_run_is_over_when_its_supervisor_has_ended(tmp_path: Path) -> None:
    claim = begun(tmp_path / "out")
    with closing(LocalPlace(tmp_path / "out")) as place:
        assert not place.over()
        claim.release()
        assert place.over()


def test_a_directory_that_is_removed_is_told_and_not_taken_for_the_end(root: Path, place: LocalPlace) -> None:
    assert not place.over()
    shutil.rmtree(root)
    with pytest.raises(ChaosError, match=r"out: the directory of the run was removed or replaced$"):
        place.over()


def test_another_run_in_its_directory_is_not_taken_for_it(root: Path, place: LocalPlace) -> None:
    root.rename(root.with_name("moved"))
    other = begun(root)
    with pytest.raises(ChaosError, match=r"out: the directory of the run was removed or replaced$"):
        place.over()
    other.release()


def test_an_order_that_cannot_be_written_hits_nobody_and_ends_the_session(root: Path, place: LocalPlace) -> None:
    why = f"{root / 'chaos.orders'}: cannot be written (File too large)"
    with full_disk():
        assert place.hit(KILL) == ((), why)
    with pytest.raises(ChaosError) as raised:
        place.over()
    assert str(raised.value) == why
