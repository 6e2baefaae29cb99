"""Uploads one backup, and deletes older ones. Blocking, for a thread of its own.

Of a checkpoint's files, those that the backup before has too are copied within the store. The files go first and the
manifest last. Only then are older backups of the same directory deleted, so that whatever breaks off, the newest
complete one stays.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from diloco.runtime.files import sha256_file
from diloco.runtime.object_store import ObjectStore, StoppedError, StoreError
from diloco.syncer.backup.manifest import (
    ENDING,
    FORMAT,
    MODEL,
    BackupError,
    BackupFile,
    BackupManifest,
    BackupName,
    complete,
    stored_manifest,
    write_manifest,
)
from diloco.syncer.backup.ownership import BackupOwner, check_owner

_log = logging.getLogger(__name__)

_ABANDONED_AFTER: Final = timedelta(days=1)
"""Age at which an upload without a manifest is deleted (ours)."""


@dataclass(frozen=True, slots=True)
class BackupSource:
    """What is to be uploaded."""

    what: str
    """Name of a checkpoint, or `MODEL`."""
    files: tuple[Path, ...]
    """The first tells it apart: a checkpoint's manifest has the digests of the others in it."""
    digests: Mapping[str, str]
    """SHA-256 that files must have, by name; of others it is calculated."""
    step: int


class Uploader:
    """Uploads the backups of one syncer process to one folder."""

    def __init__(self, owner: BackupOwner) -> None:
        self._owner = owner
        self._last: BackupName | None = None

    def upload(
        self, store: ObjectStore, source: BackupSource, keep: int, go_on: Callable[[int], bool]
    ) -> BackupManifest:
        """Upload a backup, unless this very one is there, and prune to ``keep`` of checkpoints. Returns its manifest.

        ``go_on`` is called with the size of each block, and with 0 before a file is copied; false stops the upload.

        Raises:
            OSError: a local file cannot be read.
            BackupError: a local file is not what it was when it was written.
            NotOursError: the folder has backups of another job, or another syncer uploads to it.
            StoreError, StoppedError: see `ObjectStore.upload`.
        """
        names = store.names()
        backups = complete(names)
        check_owner(store, self._owner, backups, self._last)
        ours = [name for name in backups if self._owner.wrote(name)]
        kind = [name for name in ours if name.is_model == (source.what == MODEL)]
        before = _readable(store, kind[-1]) if kind else None
        if before is not None and kind[-1].what == source.what and _same(before, source):
            made = before
        else:
            owner, newest = self._owner, backups[-1] if backups else None
            name = BackupName.after(newest, datetime.now(UTC), owner.training, source.what, owner.writer)
            # In a folder a copy costs as much as the file, and a link would spoil every backup of a damaged file.
            there = before if not store.is_folder else None
            made = _manifest(owner, source, name, _copied(store, str(name), source, there, go_on))
            # First: if the answer to the write is lost, this one is there and is ours all the same.
            self._last = name
            store.write(f"{name}{ENDING}", write_manifest(made))
            ours.append(name)
        finished = set(ours)
        _prune(store, [name for name in names if self._is_unfinished(name, finished)], ours, keep)
        return made

    def _is_unfinished(self, name: str, finished: set[BackupName]) -> bool:
        """Whether it is a folder of ours whose upload broke off long ago."""
        found = BackupName.parse(name)
        if found is None or found in finished or not self._owner.wrote(found):
            return False
        return datetime.now(UTC) - found.time > _ABANDONED_AFTER


def _readable(store: ObjectStore, name: BackupName) -> BackupManifest | None:
    try:
        return stored_manifest(store, name)
    except BackupError as error:
        _log.warning("%s: backup %s: %s", store.url, name, error)
        return None


def _same(before: BackupManifest, source: BackupSource) -> bool:
    """Whether a backup has these very files: a syncer that starts again must not upload them again."""
    first = source.files[0]
    return first.name in before.files and before.files[first.name].sha256 == sha256_file(first)


def _copied(
    store: ObjectStore, name: str, source: BackupSource, before: BackupManifest | None, go_on: Callable[[int], bool]
) -> dict[str, BackupFile]:
    """Bring all files to the folder ``name``; the store copies those that the backup ``before`` has."""
    there = {} if before is None else {file.sha256: f"{before.name}/{path}" for path, file in before.files.items()}
    files = {}
    for path in source.files:
        target, digest = f"{name}/{path.name}", source.digests.get(path.name, "")
        if digest not in there or not _copied_there(store, there[digest], target, path.stat().st_size):
            sent = store.upload(path, target, go_on)
            if digest not in ("", sent):
                raise BackupError(f"{path}: its digest does not match: it was changed or damaged")
            digest = sent
        elif not go_on(0):
            raise StoppedError
        files[path.name] = BackupFile(size_bytes=store.size(target), sha256=digest)
    return files


def _copied_there(store: ObjectStore, earlier: str, target: str, size_bytes: int) -> bool:
    """Whether the store itself could copy a file of an earlier backup."""
    try:
        store.copy(earlier, target)
        return store.size(target) == size_bytes
    except StoreError as error:
        _log.info("%s; it is uploaded again", error)
        return False


def _manifest(
    owner: BackupOwner, source: BackupSource, name: BackupName, files: dict[str, BackupFile]
) -> BackupManifest:
    return BackupManifest(
        format=FORMAT,
        name=str(name),
        job=owner.job.name,
        namespace=owner.job.namespace,
        layout=owner.layout.digest,
        model_parameters=owner.layout.numel,
        model_fragments=len(owner.layout.fragments),
        step=source.step,
        files=files,
    )


def _prune(store: ObjectStore, unfinished: Sequence[str], ours: Sequence[BackupName], keep: int) -> None:
    """Delete ``unfinished`` uploads and all but the newest ``keep`` checkpoints and the newest model of ``ours``.

    Those of another directory stay, also if they are of the same training: another syncer may be going on with it.
    What cannot be deleted is tried again after the next upload.
    """
    checkpoints = [one for one in ours if not one.is_model]
    models = [one for one in ours if one.is_model]
    try:
        for old in [*checkpoints[:-keep], *models[:-1]]:
            store.delete(f"{old}{ENDING}")  # first, so that no backup without files is ever complete
            store.delete(str(old))
        for name in unfinished:
            store.delete(name)
    except StoreError as error:
        _log.warning("old backups could not be deleted: %s", error)
