import errno
import fcntl
from pathlib import Path

import pytest

from diloco.local.directory import DirectoryClaim, RunDirectory, RunDirectoryError, begin, resume
from diloco.spec import DiLoCoJob, parse_job
from tests.support.small_manifest import SMALL_MANIFEST


def job(text: str = SMALL_MANIFEST) -> DiLoCoJob:
    return parse_job(text)


def test_a_new_run_keeps_its_manifest(tmp_path: Path) -> None:
    directory = begin(tmp_path / "out", SMALL_MANIFEST, overwrite=False)
    assert directory.job.read_text() == SMALL_MANIFEST
    assert directory.learner("east/a/1").parent.is_dir()
    assert directory.log("east/a/1").name == "east.a.1.log"


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all I have")
    with pytest.raises(RunDirectoryError, match="not empty; empty it, or use another one"):
        begin(tmp_path, SMALL_MANIFEST, overwrite=False)
    with pytest.raises(RunDirectoryError, match="is something else"):
        begin(tmp_path, SMALL_MANIFEST, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "all I have"


def test_an_earlier_run_is_only_replaced_when_asked(tmp_path: Path) -> None:
    first = begin(tmp_path / "out", SMALL_MANIFEST, overwrite=False)
    first.summary.write_text("{}")
    with pytest.raises(RunDirectoryError, match="continue it with --resume, replace it with --overwrite"):
        begin(first.root, SMALL_MANIFEST, overwrite=False)
    begin(first.root, SMALL_MANIFEST, overwrite=True)
    assert not first.summary.exists()


def test_a_run_in_which_nothing_was_trained_does_not_block_the_next(tmp_path: Path) -> None:
    first = begin(tmp_path / "out", SMALL_MANIFEST, overwrite=False)
    DirectoryClaim(first).release()
    (first.syncer / "checkpoints" / "000002").mkdir(parents=True)
    again = begin(first.root, SMALL_MANIFEST.replace("small", "other"), overwrite=False)
    assert "other" in again.job.read_text()
    assert not (again.syncer / "checkpoints").exists()
    (again.syncer / "curves.jsonl").write_text("{}")
    with pytest.raises(RunDirectoryError, match="not empty"):
        begin(first.root, SMALL_MANIFEST, overwrite=False)


def test_a_run_is_in_use_while_it_is_claimed(tmp_path: Path) -> None:
    directory = begin(tmp_path, SMALL_MANIFEST, overwrite=False)
    seen = [directory.in_use]
    claim = DirectoryClaim(directory)
    seen.append(directory.in_use)
    claim.release()
    assert [*seen, directory.in_use] == [False, True, False]


def test_a_run_is_resumed_with_a_manifest_that_fits(tmp_path: Path) -> None:
    begin(tmp_path, SMALL_MANIFEST, overwrite=False)
    longer = SMALL_MANIFEST.replace("tokens: 1000", "tokens: 2000")
    assert resume(tmp_path, longer, job(longer)).job.read_text() == longer


@pytest.mark.parametrize(
    ("before", "after"), [("learners: 2", "learners: 3"), ("learners: 2", "learners: 1"), ("name: east", "name: north")]
)
def test_a_run_is_resumed_with_other_learners(tmp_path: Path, before: str, after: str) -> None:
    begin(tmp_path, SMALL_MANIFEST, overwrite=False)
    assert before in SMALL_MANIFEST
    other = SMALL_MANIFEST.replace(before, after)
    assert resume(tmp_path, other, job(other)).job.read_text() == other


@pytest.mark.parametrize(
    ("before", "after", "path"),
    [
        ("preset: pico", "preset: nano", "spec.model"),
        ("text: {}", "text: {path: /elsewhere}", "spec.data"),
        ("fragments: 4", "fragments: 3", "spec.sync.fragments"),
        ("sequenceLength: 16", "sequenceLength: 32", "spec.training.sequenceLength"),
        ("name: small", "name: large", "metadata.name"),
        ("batchSize: 2", "batchSize: 2, optimizer: {type: Muon}", "spec.training.optimizer.type"),
        (
            "batchSize: 2",
            "batchSize: 2, optimizer: {type: Muon, groups: [{match: ['*.up.*']}]}",
            r"spec.training.optimizer.type, spec.training.optimizer.groups \(match, optimizer\)",
        ),
    ],
)
def test_a_run_is_not_resumed_with_another_job(tmp_path: Path, before: str, after: str, path: str) -> None:
    begin(tmp_path, SMALL_MANIFEST, overwrite=False)
    other = SMALL_MANIFEST.replace(before, after)
    with pytest.raises(RunDirectoryError, match=f"--resume: {path}"):
        resume(tmp_path, other, job(other))
    assert RunDirectory(tmp_path).job.read_text() == SMALL_MANIFEST


def test_a_file_system_without_locks_is_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(_: int, __: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(RunDirectoryError, match="cannot be locked"):
        DirectoryClaim(begin(tmp_path, SMALL_MANIFEST, overwrite=False))


def test_a_directory_in_use_keeps_its_manifest(tmp_path: Path) -> None:
    directory = begin(tmp_path / "out", SMALL_MANIFEST, overwrite=False)
    claim = DirectoryClaim(directory)
    other = SMALL_MANIFEST + "# other\n"
    with pytest.raises(RunDirectoryError, match="another diloco run is using this directory"):
        resume(directory.root, other, parse_job(other, "other"))
    with pytest.raises(RunDirectoryError, match="another diloco run is using this directory"):
        begin(directory.root, other, overwrite=True)
    claim.release()
    DirectoryClaim(directory).release()
    assert directory.job.read_text() == SMALL_MANIFEST


def test_a_run_that_has_trained_is_not_resumed_without_the_global_model(tmp_path: Path) -> None:
    directory = begin(tmp_path, SMALL_MANIFEST, overwrite=False)
    resume(tmp_path, SMALL_MANIFEST, job())  # interrupted before anything was trained
    (directory.learner("east/a/0") / "checkpoints" / "step-00000020").mkdir(parents=True)
    with pytest.raises(RunDirectoryError, match=r"syncer has no checkpoint although learners have trained"):
        resume(tmp_path, SMALL_MANIFEST, job())
    (directory.syncer / "checkpoints" / "000004").mkdir(parents=True)
    assert resume(tmp_path, SMALL_MANIFEST, job()).syncer == directory.syncer
