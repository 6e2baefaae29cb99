"""The output directory of a run: where what lies, who may use it, and which manifest may continue what is there."""

import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from diloco.runtime.files import UnusableFileError, make_writable_directory, write_atomically
from diloco.spec import DiLoCoJob, SpecError, load_job

LOCK: Final = ".lock"

_OURS: Final = (
    "job.yaml",
    "syncer",
    "learners",
    "logs",
    "tls",
    "supervisor.jsonl",
    "summary.json",
    "report.html",
    "model.safetensors",
    "sample.txt",
    LOCK,
)


class RunDirectoryError(ValueError):
    """The output directory cannot be used as asked; the text is one line that names it and what to do."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths in the output directory."""

    root: Path

    @property
    def job(self) -> Path:
        """The manifest, as it was run."""
        return self.root / "job.yaml"

    @property
    def syncer(self) -> Path:
        """The syncer's own directory: checkpoints, tape, payloads, endpoint."""
        return self.root / "syncer"

    def learner(self, learner: str) -> Path:
        """A learner's own directory."""
        return self.root / "learners" / dotted(learner)

    def log(self, process: str) -> Path:
        """What a process printed, over all its starts."""
        return self.root / "logs" / f"{dotted(process)}.log"

    @property
    def certificates(self) -> Path:
        """What its processes know each other by; readable for the run's user alone."""
        return self.root / "tls"

    @property
    def has_checkpoint(self) -> bool:
        """The syncer has something to go on from."""
        folder = self.syncer / "checkpoints"
        return folder.is_dir() and any(entry.name.isdigit() for entry in folder.iterdir())

    @property
    def has_trained(self) -> bool:
        """Some learner has written a checkpoint."""
        return any(self.root.glob("learners/*/checkpoints/*"))

    @property
    def journal(self) -> Path:
        """What the supervisor did."""
        return self.root / "supervisor.jsonl"

    @property
    def summary(self) -> Path:
        """Figures of the run for scripts."""
        return self.root / "summary.json"

    @property
    def report(self) -> Path:
        """The run for people."""
        return self.root / "report.html"

    @property
    def model(self) -> Path:
        """The trained model."""
        return self.root / "model.safetensors"

    @property
    def sample(self) -> Path:
        """Text that the trained model wrote."""
        return self.root / "sample.txt"


def dotted(process: str) -> str:
    """A learner's id as a file name: ``region.pool.index``. Names are DNS labels, so no two learners meet in one."""
    return process.replace("/", ".")


class DirectoryClaim:
    """Holds a run directory for this process, until ``release`` or the process's end."""

    def __init__(self, directory: RunDirectory) -> None:
        """Claim it.

        Raises:
            RunDirectoryError: another process holds it, or it cannot be locked.
        """
        self._descriptor = os.open(directory.root / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise RunDirectoryError(
                f"--output {directory.root}: another diloco run is using this directory; wait for it or use another one"
            ) from error
        except OSError as error:
            os.close(self._descriptor)
            raise RunDirectoryError(
                f"--output {directory.root}: cannot be locked ({error.strerror or error}); "
                "use a directory on a file system with file locks"
            ) from error

    def release(self) -> None:
        """Let others have it."""
        os.close(self._descriptor)


def begin(root: Path, job_text: str, *, overwrite: bool) -> RunDirectory:
    """Make ``root`` the directory of a new run of the manifest ``job_text``.

    ``overwrite`` removes an earlier run from it, and nothing else: files that no run makes are refused.

    Raises:
        RunDirectoryError: it is in use otherwise, or cannot be written.
    """
    directory = _writable(root)
    there = sorted(entry.name for entry in root.iterdir())
    if there and not overwrite:
        advice = "continue it with --resume, replace it with --overwrite" if directory.job.exists() else "empty it"
        raise RunDirectoryError(f"--output {root}: the directory is not empty; {advice}, or use another one")
    foreign = [name for name in there if name not in _OURS]
    if foreign:
        raise RunDirectoryError(
            f"--output {root}: --overwrite only removes what a run created, and {foreign[0]!r} is something else"
        )
    if there:
        claim = DirectoryClaim(directory)
        for name in there:
            if name != LOCK:  # another process could hold the one while a third makes itself a new one
                _remove(root / name)
        claim.release()
    _stage(directory, job_text)
    return directory


def resume(root: Path, job_text: str, job: DiLoCoJob) -> RunDirectory:
    """Take up the run in ``root`` again with the manifest ``job``, which replaces the one there.

    Raises:
        RunDirectoryError: there is no run, the manifest differs in what cannot change, or it cannot be written.
    """
    directory = RunDirectory(root)
    if not directory.job.is_file():
        raise RunDirectoryError(
            f"--resume: {root} has no run to continue (there is no job.yaml); use the directory of a run"
        )
    _writable(root)
    try:
        before = load_job(directory.job)
    except SpecError as error:
        raise RunDirectoryError(f"--resume: {str(error).splitlines()[0]}") from error
    differences = frozen_differences(before, job)
    if differences:
        raise RunDirectoryError(
            f"--resume: {', '.join(differences)} of the manifest cannot change within a run; "
            f"use the earlier values, from {directory.job}"
        )
    if directory.has_trained and not directory.has_checkpoint:
        raise RunDirectoryError(
            f"--resume: {directory.syncer} has no checkpoint although learners have trained: it was removed, and the "
            "global model with it; restore it, or replace the run with --overwrite"
        )
    DirectoryClaim(directory).release()  # not under the feet of a run that is at work here
    _stage(directory, job_text)
    return directory


def _writable(root: Path) -> RunDirectory:
    try:
        make_writable_directory(root)
    except UnusableFileError as error:
        raise RunDirectoryError(f"--output {error}") from error
    return RunDirectory(root)


def _stage(directory: RunDirectory, job_text: str) -> None:
    try:
        for part in (directory.syncer, directory.root / "learners", directory.root / "logs"):
            part.mkdir(exist_ok=True)
        write_atomically(directory.job, job_text)
    except OSError as error:
        raise RunDirectoryError(f"--output {directory.root}: cannot be written to ({error.strerror})") from error


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        raise RunDirectoryError(f"--output: cannot remove {path} ({error.strerror})") from error


def frozen_differences(before: DiLoCoJob, after: DiLoCoJob) -> tuple[str, ...]:
    """Paths in the manifest that differ and must not: the state on disk would not fit the changed job.

    Budget, batch, the inner optimizer's rates, outer optimizer, quorum, grace, compression both ways, evaluation and
    policies may change.
    """
    old, new = _frozen(before), _frozen(after)
    return tuple(path for path in old if old[path] != new[path])


def _frozen(job: DiLoCoJob) -> dict[str, Any]:
    spec = job.spec
    muon = spec.training.optimizer.muon_options
    return {
        "metadata.name": job.metadata.name,
        "spec.model": spec.model,
        "spec.data": spec.data,
        "spec.training.sequenceLength": spec.training.sequence_length,
        "spec.training.seed": spec.training.seed,
        "spec.training.optimizer.kind": spec.training.optimizer.kind,
        "spec.training.optimizer.muon.exclude": () if muon is None else muon.exclude,
        "spec.sync.fragments": spec.sync.fragments,
        "spec.regions (names, pools, learners)": spec.learner_ids,
    }
