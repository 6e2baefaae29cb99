"""Brings a backup of a checkpoint to the syncer's disk, as an ordinary checkpoint, before there is an event loop.

Nothing is taken on trust: sizes are checked against the model and the free space before anything is transferred, and
digests after. A damaged backup is passed over for the one before it of the same training; one of another model ends the
start, and so does a folder that has only those of other jobs.
"""

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from diloco.core.fragments import Layout, Match
from diloco.runtime.files import UnusableFileError
from diloco.runtime.object_store import ObjectStore, StoreError, WrongFileError, open_store
from diloco.runtime.process.exits import EXIT_UNEXPECTED
from diloco.spec.backup import InitFrom
from diloco.syncer.backup.manifest import (
    BackupError,
    BackupManifest,
    BackupName,
    LaterBackupError,
    complete,
    stored_manifest,
)
from diloco.syncer.backup.ownership import JobName
from diloco.syncer.disk.checkpoint import OtherModelError
from diloco.syncer.disk.fragment_file import file_of
from diloco.syncer.errors import SyncerError

_log = logging.getLogger(__name__)

_LARGEST_OTHER_BYTES: Final = 64 << 20
"""Most bytes of a file of a checkpoint that holds no tensors."""
_HEADER_BYTES: Final = 1 << 16
"""Most bytes of the header of a fragment's file."""
_BYTES_A_PARAMETER: Final = 12
_MANIFEST: Final = "manifest.json"


_T = TypeVar("_T")


def restore(  # noqa: PLR0913  # of what, whose, where to, and who reads it
    begins: InitFrom,
    job: JobName,
    layout: Layout,
    checkpoints: Path,
    *,
    load: Callable[[str], _T],
    open_folder: Callable[..., ObjectStore] = open_store,
) -> tuple[_T, str]:
    """Write the newest usable backup of a checkpoint into ``checkpoints``: what ``load`` makes of it, its training.

    ``load`` gets the checkpoint's name. If it raises UnusableFileError, the backup before is used.

    Raises:
        SyncerError: there is none; all are of other jobs; a later version of diloco wrote it; the store does not
            answer, or the disk has no room.
        OtherModelError: it is of another model.
        OSError: it could not be written.
    """
    store = opened(begins, open_folder)

    def use(name: BackupName, manifest: BackupManifest) -> tuple[_T, str]:
        check_layout(begins, manifest, layout)
        folder = _download(store, name, manifest, layout, checkpoints)
        try:
            return load(folder.name), name.training
        except UnusableFileError:
            shutil.rmtree(folder)
            raise

    return newest_usable(store, begins, job, use)


def newest_usable(
    store: ObjectStore, begins: InitFrom, job: JobName | None, use: Callable[[BackupName, BackupManifest], _T]
) -> _T:
    """What ``use`` makes of the newest complete backup for which it raises no BackupError or UnusableFileError.

    All that are tried are of one training. ``job``: goes on with a backup of a checkpoint; None: the parameters of any
    job's backup will do.

    Raises:
        SyncerError: there is none; all are of other jobs; a later version of diloco wrote it, or the store does not
            answer.
    """
    training, foreign = "", None
    try:
        for name in reversed(complete(store.names())):
            unwanted = (job is not None and name.is_model) or (training and name.training != training)
            if unwanted or begins.backup not in (None, str(name)):
                continue
            try:
                manifest = stored_manifest(store, name)
                if job is not None and not _may_resume(begins, job, manifest):
                    foreign = foreign or manifest
                    continue
                training = name.training
                found = use(name, manifest)
            except LaterBackupError as error:
                raise SyncerError(f"spec.initFrom.url: backup {name} of {store.url}: {error}") from None
            except (BackupError, UnusableFileError) as error:
                _log.warning("%s: skipped backup %s: %s", begins.url, name, error)
            else:
                _log.info("%s: begins from backup %s of job %s, step %d", store.url, name, manifest.job, manifest.step)
                return found
    except StoreError as error:
        raise unreachable(error) from None
    if job is not None and foreign is not None and not training:
        raise _of_another_job(begins, job, foreign)
    raise _none_usable(begins, "a checkpoint" if job is not None else "a checkpoint or model", training)


def opened(begins: InitFrom, open_folder: Callable[..., ObjectStore] = open_store) -> ObjectStore:
    """The folder that a job begins from.

    Raises:
        SyncerError: it cannot be opened.
    """
    try:
        return open_folder(begins.url, begins.endpoint)
    except StoreError as error:
        raise SyncerError(f"spec.initFrom.url: {error}") from None


def check_files(manifest: BackupManifest, limits: Mapping[str, int]) -> None:
    """Check that a backup has the files that ``limits`` names, none with more bytes than there.

    Raises:
        BackupError: it has not.
    """
    if manifest.files.keys() != limits.keys():
        raise BackupError(f"it has {len(manifest.files)} files, not the {len(limits)} of this job's model")
    for name, file in manifest.files.items():
        if file.size_bytes > limits[name]:
            raise BackupError(f"{name} has {file.size_bytes} bytes; with this job's model at most {limits[name]}")


def fetch(store: ObjectStore, manifest: BackupManifest, name: str, target: Path) -> None:
    """Copy one file of a backup to ``target``, and check it.

    Raises:
        BackupError: it is missing, or not what the manifest says.
        StoreError: the store does not answer.
        OSError: it could not be written.
    """
    file = manifest.files[name]
    try:
        found = store.download(f"{manifest.name}/{name}", target, file.size_bytes)
    except WrongFileError as error:
        raise BackupError(str(error)) from None
    if found != file.sha256:
        raise BackupError(f"the digest of {name} does not match: it was changed or damaged")


def unreachable(error: StoreError) -> SyncerError:
    """The error of a start that did not reach the store."""
    # It may answer at the next start, so it is no mistake in the manifest for certain.
    return SyncerError(f"spec.initFrom.url: {error}", EXIT_UNEXPECTED)


def bytes_at_most(layout: Layout) -> dict[str, int]:
    """By name, the files of a checkpoint, and the most bytes that each may have."""
    limits = {file_of(one.index): _BYTES_A_PARAMETER * one.numel + _HEADER_BYTES for one in layout.fragments}
    return {_MANIFEST: _LARGEST_OTHER_BYTES, **limits}


def check_room(folder: Path, wanted_bytes: int) -> None:
    """Check that a download fits.

    Raises:
        SyncerError: it does not.
    """
    free = shutil.disk_usage(folder).free
    if wanted_bytes > free:
        text = f"{folder}: {free} bytes are free, and the backup needs {wanted_bytes}; use a larger volume"
        raise SyncerError(f"{text} (spec.syncer.storage.size)", EXIT_UNEXPECTED)


def check_layout(begins: InitFrom, manifest: BackupManifest, layout: Layout) -> None:
    """Check that a backup of a checkpoint is of the job's model.

    Raises:
        OtherModelError: it is cut into fragments differently.
        SyncerError: its frozen parameters or buffers differ.
    """
    match = layout.match(manifest.layout)
    where = f"spec.initFrom.url: backup {manifest.name} of {begins.url}"
    if match is Match.OTHER_CUT:
        theirs = f"{manifest.model_parameters} parameters in {manifest.model_fragments} fragments"
        ours = f"{layout.numel} parameters in {len(layout.fragments)} fragments"
        raise OtherModelError(
            f"{where} is of another model ({theirs}, layout {manifest.layout[:12]}) than the job's ({ours}, layout "
            f"{layout.digest[:12]}); use the spec.model and spec.sync.fragments that it was made with"
        )
    if match is Match.OTHER_CONSTANTS:
        raise SyncerError(
            f"{where} is of a model with other frozen parameters or buffers than the job's; use the spec.model that it "
            "was made with"
        )


def _may_resume(begins: InitFrom, job: JobName, manifest: BackupManifest) -> bool:
    """Whether the job may go on with a backup; with one of its name from another namespace only if it is named."""
    theirs = JobName.in_manifest(manifest)
    return job.may_be(theirs) or (begins.backup is not None and job.name == theirs.name)


def _of_another_job(begins: InitFrom, job: JobName, manifest: BackupManifest) -> SyncerError:
    theirs = JobName.in_manifest(manifest)
    remedy = "use a folder of this job"
    if theirs.name == job.name:
        remedy += ", or name the backup (spec.initFrom.backup) to go on with that training here"
    return SyncerError(
        f"spec.initFrom.url: backup {manifest.name} of {begins.url} is of job {theirs}, not of {job}; {remedy}, or "
        "spec.initFrom.type Weights to begin from its parameters"
    )


def _none_usable(begins: InitFrom, what: str, training: str) -> SyncerError:
    which = f"complete and undamaged backup of {what}" + (f" of training {training}" if training else "")
    if begins.backup is not None:
        which = f"undamaged backup {begins.backup}"
    other = "the name of another backup (spec.initFrom.backup), or " if training else ""
    return SyncerError(
        f"spec.initFrom.url: {begins.url} has no {which}; use {other}another folder, or remove spec.initFrom"
    )


def _download(
    store: ObjectStore, name: BackupName, manifest: BackupManifest, layout: Layout, checkpoints: Path
) -> Path:
    # Before the free space: a manifest that lies must not look like a full disk.
    check_files(manifest, bytes_at_most(layout))
    checkpoints.mkdir(parents=True, exist_ok=True)
    check_room(checkpoints, manifest.size_bytes)
    aside = checkpoints / f".{name.what}.part"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        for file in sorted(manifest.files):
            fetch(store, manifest, file, aside / file)
        aside.rename(checkpoints / name.what)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return checkpoints / name.what
