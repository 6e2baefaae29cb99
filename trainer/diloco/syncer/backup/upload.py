"""Uploads one backup, and deletes older ones. Blocking, for a thread of its own.

Of a checkpoint's files, those that the backup before has too are copied within the store. The files go first and the
manifest last. Only then are older backups of the same directory deleted, so that whatever breaks off, the newest
complete one stays.
"""

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from diloco.runtime.files import sha256_file
from diloco.runtime.object_store import ObjectStore, StoppedError, StoreError
from diloco.syncer.backup.listing import Listing, Manifests
from diloco.syncer.backup.manifest import (
    ENDING,
    FORMAT,
    MODEL,
    BackupError,
    BackupFile,
    BackupManifest,
    BackupName,
    complete,
    write_manifest,
)
from diloco.syncer.backup.ownership import BackupOwner, Use, checked_use

_log = logging.getLogger(__name__)

_ABANDONED_AFTER: Final = timedelta(days=1)
"""Age at which an upload without a manifest is deleted (ours)."""
_WITNESS: Final = "manifest.json"
"""File by which an uploaded checkpoint is recognized: it has the digests of the others in it."""


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


def upload_backup(  # noqa: PLR0913  # what an upload is made of
    store: ObjectStore,
    owner: BackupOwner,
    source: BackupSource,
    keep: int,
    go_on: Callable[[int], bool],
    *,
    manifests: Manifests | None = None,
) -> BackupManifest:
    """Upload a backup, unless this very one is there, and prune to ``keep`` of checkpoints. Returns its manifest.

    ``go_on`` is called with the size of each block, and with 0 before a manifest is read; false stops the upload.
    ``manifests`` is what has been read of this folder before.

    Raises:
        OSError: a local file cannot be read.
        BackupError: a local file is not what it was when it was written.
        NotOursError: the folder has backups of another job, or another syncer uploads to it.
        StoreError, StoppedError: see `ObjectStore.upload`.
    """
    manifests = manifests or Manifests()
    listing = manifests.listing(store, go_on)
    use = checked_use(store.url, owner, listing.backups)
    manifest = _same(owner, source, listing)
    if manifest is None:
        name = BackupName.after(
            None if listing.newest is None else listing.newest.time,
            datetime.now(UTC),
            owner.training,
            source.what,
            owner.mark + secrets.token_hex(4)[len(owner.mark) :],
        )
        use = use or Use(name, listing.newest)
        # In a folder a copy costs as much as the file, and a link would spoil every backup of a damaged file.
        there = {} if store.is_folder else _there(listing, owner)
        manifest = _manifest(owner, source, name, use, _copied(store, str(name), source, there, go_on))
        store.write(f"{name}{ENDING}", write_manifest(manifest))
    _prune(store, owner, keep, manifests)
    return manifest


def _copied(
    store: ObjectStore, name: str, source: BackupSource, there: Mapping[str, str], go_on: Callable[[int], bool]
) -> dict[str, BackupFile]:
    """Bring all files to the folder ``name``. ``there``: where the store has a file already, by its SHA-256."""
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


def _there(listing: Listing, owner: BackupOwner) -> dict[str, str]:
    """The files of the newest backup of this directory, by SHA-256."""
    ours = [one for name, one in listing.backups.items() if owner.wrote(one) and not name.is_model]
    return {file.sha256: f"{one.name}/{name}" for one in ours[-1:] for name, file in one.files.items()}


def _manifest(
    owner: BackupOwner, source: BackupSource, name: BackupName, use: Use, files: dict[str, BackupFile]
) -> BackupManifest:
    return BackupManifest(
        format=FORMAT,
        kind="Model" if source.what == MODEL else "Checkpoint",
        name=str(name),
        job=owner.job.name,
        namespace=owner.job.namespace,
        training=owner.training,
        writer=owner.writer,
        first=str(use.first),
        after="" if use.after is None else str(use.after),
        layout=owner.layout.digest,
        model_parameters=owner.layout.numel,
        model_fragments=len(owner.layout.fragments),
        epoch=source.epoch,
        step=source.step,
        written_at=datetime.now(UTC).timestamp(),
        files=files,
    )


def _same(owner: BackupOwner, source: BackupSource, listing: Listing) -> BackupManifest | None:
    """The manifest of a backup of these very files: a syncer that starts again must not upload them again."""
    ours = [one for name, one in listing.backups.items() if name.what == source.what and owner.wrote(one)]
    for manifest in ours[-1:]:
        for path in source.files:
            witness = manifest.files.get(path.name)
            if path.name == _WITNESS or len(source.files) == 1:
                same = witness is not None and witness.sha256 == sha256_file(path)
                return manifest if same else None
    return None


def _prune(store: ObjectStore, owner: BackupOwner, keep: int, manifests: Manifests) -> None:
    """Delete older backups of this directory: of checkpoints all but the newest ``keep``, of models all but one.

    Those of another directory stay, also if they are of the same training: another syncer may be going on with it.
    What cannot be deleted is tried again after the next upload.
    """
    try:
        listing = manifests.listing(store, lambda _: True)
        ours = [name for name, one in listing.backups.items() if owner.wrote(one)]
        checkpoints = [one for one in ours if not one.is_model]
        models = [one for one in ours if one.is_model]
        for old in [*checkpoints[:-keep], *models[:-1]]:
            store.delete(f"{old}{ENDING}")  # first, so that no backup without files is ever complete
            store.delete(str(old))
        known = {str(one) for one in complete(listing.names)}
        for name in listing.names:
            parts = BackupName.parse(name)
            if parts is None or parts.training != owner.training or name in known:
                continue
            if parts.unique.startswith(owner.mark) and datetime.now(UTC) - parts.time > _ABANDONED_AFTER:
                store.delete(name)
    except StoreError as error:
        _log.warning("old backups could not be deleted: %s", error)
