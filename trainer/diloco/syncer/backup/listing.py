"""The backups that are complete in a folder, with their manifests. Each manifest is read once: it never changes."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from diloco.runtime.object_store import ObjectStore, StoppedError, StoreError, TooLargeError
from diloco.syncer.backup.manifest import (
    ENDING,
    LIMIT_BYTES,
    BackupError,
    BackupManifest,
    BackupName,
    complete,
    read_manifest,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listing:
    """What is in a folder."""

    names: list[str]
    """All names, also of what is no complete backup."""
    backups: dict[BackupName, BackupManifest]
    """Complete backups whose manifest can be read, oldest first."""

    @property
    def newest(self) -> BackupName | None:
        """The newest complete backup, also if its manifest is damaged."""
        return max(complete(self.names), default=None)


class Manifests:
    """The manifests of one folder that have been read."""

    def __init__(self) -> None:
        self._read: dict[BackupName, BackupManifest | None] = {}
        """None: damaged."""

    def listing(self, store: ObjectStore, go_on: Callable[[int], bool]) -> Listing:
        """What is in the folder now. ``go_on`` is called with 0 before each manifest; false stops.

        Raises:
            StoreError: the store does not answer.
            StoppedError: ``go_on`` returned false.
        """
        names = store.names()
        self._read = {name: self._manifest(store, name, go_on) for name in complete(names)}
        return Listing(names, {name: manifest for name, manifest in self._read.items() if manifest is not None})

    def _manifest(self, store: ObjectStore, name: BackupName, go_on: Callable[[int], bool]) -> BackupManifest | None:
        if name in self._read:
            return self._read[name]
        if not go_on(0):
            raise StoppedError
        try:
            return stored_manifest(store, name)
        except BackupError as error:
            _log.warning("%s: backup %s: %s", store.url, name, error)
            return None


def stored_manifest(store: ObjectStore, name: BackupName) -> BackupManifest:
    """The manifest of a backup.

    Raises:
        BackupError: it is damaged, of a later version, or has just been deleted.
        StoreError: the store does not answer.
    """
    try:
        content = store.read(f"{name}{ENDING}", LIMIT_BYTES)
    except TooLargeError as error:  # no syncer wrote it, and it must not keep ours from being read
        raise BackupError(str(error)) from None
    except StoreError as error:
        # A manifest that cannot be read is passed over only if the store answers.
        if f"{name}{ENDING}" not in store.names():
            raise BackupError("it has just been deleted") from None
        raise StoreError(str(error)) from None
    return read_manifest(content, str(name))
