"""Brings a backup of a checkpoint to the syncer's disk, as an ordinary checkpoint, before there is an event loop.

Nothing is taken on trust: sizes are checked against the model and the free space before anything is transferred, and
digests after. A damaged backup is passed over for the one before it of the same training; one of another model ends the
start, and so does a folder that has only those of other jobs.
"""

import logging
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from diloco.core.fragments import Layout, Match
from diloco.runtime.object_store import ObjectStore, StoreError, open_store
from diloco.runtime.process.exits import EXIT_UNEXPECTED
from diloco.spec.backup import InitFrom
from diloco.syncer.backup.choice import candidates, none_usable, read_named, unreachable
from diloco.syncer.backup.manifest import BackupError, BackupManifest, BackupName
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
_CHECKPOINT: Final = re.compile(r"^\d{6,18}$")
_MANIFEST: Final = "manifest.json"


def restore(
    begins: InitFrom,
    job: JobName,
    layout: Layout,
    checkpoints: Path,
    open_folder: Callable[..., ObjectStore] = open_store,
) -> Iterator[tuple[str, str]]:
    """Write backups of checkpoints into ``checkpoints``, newest first: each time the checkpoint's name and training.

    The caller takes the first that it can use. Before the next one is written, the one before is deleted.

    Raises:
        SyncerError: there is none; all are of other jobs; there are several trainings, and it is not certain which is
            meant; a later version of diloco wrote it; the store does not answer, or the disk has no room.
        OtherModelError: it is of another model.
        OSError: it could not be written.
    """
    store = opened(begins, open_folder)
    names = candidates(store, begins, job)
    ours, foreign = False, None
    for name in names:
        try:
            manifest = read_named(store, name)
            if not _may_resume(begins, job, manifest):
                foreign = foreign or manifest
                continue
            ours = True
            check_layout(begins, manifest, layout)
            folder = _download(store, manifest, layout, checkpoints)
        except BackupError as error:
            _log.warning("%s: skipped backup %s: %s", begins.url, name, error)
            continue
        except StoreError as error:
            raise unreachable(error) from None
        _log.info("%s: restored backup %s of step %d", begins.url, name, manifest.step)
        yield folder.name, manifest.training
        shutil.rmtree(folder)
    if foreign is not None and not ours:
        raise _of_another_job(begins, job, foreign)
    raise none_usable(begins, names, "complete and undamaged backup of a checkpoint")


def opened(begins: InitFrom, open_folder: Callable[..., ObjectStore] = open_store) -> ObjectStore:
    """The folder that a job begins from.

    Raises:
        SyncerError: it cannot be opened.
    """
    try:
        return open_folder(begins.url, begins.endpoint)
    except StoreError as error:
        raise SyncerError(f"spec.initFrom.url: {error}") from None


def fetch(  # noqa: PLR0913  # what, whence, where to, and how much
    store: ObjectStore, manifest: BackupManifest, name: str, target: Path, *, limit_bytes: int, stored: Collection[str]
) -> None:
    """Copy one file of a backup to ``target``, and check it. ``stored``: names of the files that are there.

    Raises:
        BackupError: it is larger than ``limit_bytes``, missing, or not what the manifest says.
        StoreError: the store does not answer.
        OSError: it could not be written.
    """
    file = manifest.files[name]
    if file.size_bytes > limit_bytes:
        raise BackupError(f"{name} has {file.size_bytes} bytes; with this job's model it has {limit_bytes} at most")
    if name not in stored or store.size(f"{manifest.name}/{name}") != file.size_bytes:
        raise BackupError(f"{name} is missing or is not as large as its manifest says")
    if store.download(f"{manifest.name}/{name}", target, file.size_bytes) != file.sha256:
        raise BackupError(f"the digest of {name} does not match: it was changed or damaged")


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


def _download(store: ObjectStore, manifest: BackupManifest, layout: Layout, checkpoints: Path) -> Path:
    parts = BackupName.parse(manifest.name)
    assert parts is not None, "a manifest has the name of its file"
    assert _CHECKPOINT.match(parts.what), "only backups of checkpoints are restored"
    limits = bytes_at_most(layout)
    if manifest.files.keys() != limits.keys():
        raise BackupError(f"it has {len(manifest.files)} files, not those of {len(layout.fragments)} fragments")
    # Before the free space: a manifest that lies must not look like a full disk.
    for name, file in manifest.files.items():
        if file.size_bytes > limits[name]:
            raise BackupError(f"{name} has {file.size_bytes} bytes; with this job's model at most {limits[name]}")
    checkpoints.mkdir(parents=True, exist_ok=True)
    check_room(checkpoints, manifest.size_bytes)
    aside = checkpoints / f".{parts.what}.part"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        stored = store.names(manifest.name)
        for name in sorted(manifest.files):
            fetch(store, manifest, name, aside / name, limit_bytes=limits[name], stored=stored)
        aside.rename(checkpoints / parts.what)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return checkpoints / parts.what
