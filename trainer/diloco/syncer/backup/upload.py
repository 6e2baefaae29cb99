"""Uploads one backup, and deletes older ones. Blocking, for a thread of its own.

The files go first and the manifest last. Only then are older backups of the same training deleted, so that whatever
breaks off, the newest complete one stays.
"""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from diloco.core.fragments import Layout
from diloco.runtime.files import sha256_file
from diloco.syncer.backup.manifest import (
    ENDING,
    FORMAT,
    LIMIT_BYTES,
    MODEL,
    BackupError,
    BackupFile,
    BackupManifest,
    BackupName,
    complete,
    read_manifest,
    write_manifest,
)
from diloco.syncer.backup.object_store import ObjectStore, StoreError

_log = logging.getLogger(__name__)

_ABANDONED_AFTER: Final = timedelta(days=1)
"""Age at which an upload without a manifest is deleted (ours)."""
_WITNESS: Final = "manifest.json"
"""File by which an uploaded checkpoint is recognized: it has the digests of the others in it."""


@dataclass(frozen=True, slots=True)
class BackupOwner:
    """Whose backups they are."""

    job: str
    training: str
    """Id of the training."""
    layout: Layout


@dataclass(frozen=True, slots=True)
class BackupSource:
    """What is to be uploaded."""

    what: str
    """Name of a checkpoint, or `MODEL`."""
    files: tuple[Path, ...]
    digests: Mapping[str, str]
    """SHA-256 that files must have, by name; of others it is calculated."""
    epoch: int
    step: int


class NotOursError(RuntimeError):
    """The folder belongs to another job; one line."""


def upload_backup(
    store: ObjectStore, owner: BackupOwner, source: BackupSource, keep: int, go_on: Callable[[int], bool]
) -> BackupManifest:
    """Upload a backup, unless this very one is there already, and prune. Returns its manifest.

    Raises:
        OSError: a local file cannot be read.
        BackupError: a local file is not what it was when it was written.
        NotOursError: the folder has backups of another job.
        StoreError, StoppedError: see `ObjectStore.upload`.
    """
    before = complete(store.names())
    _refuse_others(store, owner, before)
    manifest = _same(store, owner, source, before)
    if manifest is None:
        name = BackupName.after(
            max((one.time for one in before), default=None),
            datetime.now(UTC),
            owner.training,
            source.what,
            secrets.token_hex(4),
        )
        manifest = _manifest(owner, source, str(name), _copied(store, str(name), source, go_on))
        store.write(f"{name}{ENDING}", write_manifest(manifest))
    _prune(store, owner, keep)
    return manifest


def _copied(store: ObjectStore, name: str, source: BackupSource, go_on: Callable[[int], bool]) -> dict[str, BackupFile]:
    files = {}
    for path in source.files:
        digest = store.upload(path, f"{name}/{path.name}", go_on)
        if source.digests.get(path.name, digest) != digest:
            raise BackupError(f"{path}: its digest does not match: it was changed or damaged")
        files[path.name] = BackupFile(size_bytes=store.size(f"{name}/{path.name}"), sha256=digest)
    return files


def _manifest(owner: BackupOwner, source: BackupSource, name: str, files: dict[str, BackupFile]) -> BackupManifest:
    return BackupManifest(
        format=FORMAT,
        kind="Model" if source.what == MODEL else "Checkpoint",
        name=name,
        job=owner.job,
        training=owner.training,
        layout=owner.layout.digest,
        model_parameters=owner.layout.numel,
        model_fragments=len(owner.layout.fragments),
        epoch=source.epoch,
        step=source.step,
        written_at=datetime.now(UTC).timestamp(),
        files=files,
    )


def _refuse_others(store: ObjectStore, owner: BackupOwner, before: list[BackupName]) -> None:
    """Two jobs in one folder would be restored from each other's backups."""
    others = [one for one in before if one.training != owner.training]
    if not others or len(others) < len(before):
        return  # it is already used for this training
    try:
        newest = read_manifest(store.read(f"{others[-1]}{ENDING}", LIMIT_BYTES), str(others[-1]))
    except BackupError:
        return
    if newest.job != owner.job:
        text = f"{store.url} has backups of job {newest.job!r}; use a folder for {owner.job!r} alone"
        raise NotOursError(f"spec.syncer.backup.url: {text}")


def _same(
    store: ObjectStore, owner: BackupOwner, source: BackupSource, before: list[BackupName]
) -> BackupManifest | None:
    """The manifest of a backup of these very files: a syncer that starts again must not upload them again."""
    wanted = (owner.training, source.what)
    found = [one for one in before if (one.training, one.what) == wanted][-1:]
    for name in found:
        try:
            manifest = read_manifest(store.read(f"{name}{ENDING}", LIMIT_BYTES), str(name))
        except BackupError as error:
            _log.warning("%s: backup %s: %s", store.url, name, error)
            return None
        for path in source.files:
            witness = manifest.files.get(path.name)
            if path.name == _WITNESS or len(source.files) == 1:
                same = witness is not None and witness.sha256 == sha256_file(path)
                return manifest if same else None
    return None


def _prune(store: ObjectStore, owner: BackupOwner, keep: int) -> None:
    """Delete older backups of this training: of checkpoints all but the newest ``keep``, of models all but one.

    What cannot be deleted is tried again after the next upload.
    """
    try:
        names = store.names()
        ours = [one for one in complete(names) if one.training == owner.training]
        checkpoints = [one for one in ours if not one.is_model]
        models = [one for one in ours if one.is_model]
        for old in [*checkpoints[:-keep], *models[:-1]]:
            store.delete(f"{old}{ENDING}")  # first, so that no backup without files is ever complete
            store.delete(str(old))
        known = {str(one) for one in ours}
        for name in names:
            parts = BackupName.parse(name)
            if parts is None or parts.training != owner.training or name in known:
                continue
            if datetime.now(UTC) - parts.time > _ABANDONED_AFTER:
                store.delete(name)
    except StoreError as error:
        _log.warning("old backups could not be deleted: %s", error)
