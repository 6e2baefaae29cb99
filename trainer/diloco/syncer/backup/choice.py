"""Which backups of a folder a job may begin from.

A folder may have several trainings of one job: one that was begun from zero by mistake leaves those before it. It may
also have backups of a copy that went on with an older one. The newest backup is then not always the one that is meant,
so it is not chosen if it is not as far as another training or copy.
"""

from collections.abc import Iterable
from typing import Final

from diloco.core.fragments import Match, match_digests
from diloco.runtime.object_store import ObjectStore, StoreError
from diloco.runtime.process.exits import EXIT_UNEXPECTED
from diloco.spec.backup import InitFrom
from diloco.syncer.backup.listing import stored_manifest
from diloco.syncer.backup.manifest import BackupError, BackupManifest, BackupName, LaterBackupError, complete
from diloco.syncer.backup.ownership import JobName
from diloco.syncer.errors import SyncerError

_MOST_LISTED: Final = 4


def candidates(store: ObjectStore, begins: InitFrom, job: JobName | None) -> list[BackupName]:
    """Complete backups that may be used, the newest first; of one training, if any manifest can be read.

    ``job``: goes on with a backup of a checkpoint; None: the parameters of any job's backup will do.

    Raises:
        SyncerError: the newest is not as far as another training or copy; the store does not answer; or a later version
            of diloco wrote the newest.
    """
    try:
        names = complete(store.names())
    except StoreError as error:
        raise unreachable(error) from None
    found = [name for name in reversed(names) if job is None or not name.is_model]
    if begins.backup is not None:
        return [name for name in found if str(name) == begins.backup]
    heads = _heads(store, found, job)
    if not heads:
        return found
    newest = heads[0]  # the one that is meant, unless another is further
    # Only merges of one model that is cut into the same fragments can be compared.
    rivals = [one for one in heads[1:] if match_digests(one.layout, newest.layout) is not Match.OTHER_CUT]
    if any(one.step > newest.step for one in rivals):
        raise _ambiguous(begins, newest, rivals)
    return [name for name in found if name.training == newest.training]


def _heads(store: ObjectStore, found: Iterable[BackupName], job: JobName | None) -> list[BackupManifest]:
    """The newest readable backup of each training and directory, of ``job`` alone if given; the newest of all first."""
    heads: dict[tuple[str, str], BackupManifest] = {}
    for name in found:
        try:
            manifest = stored_manifest(store, name)
        except StoreError as error:
            raise unreachable(error) from None
        except BackupError as error:
            if isinstance(error, LaterBackupError) and not heads:
                raise _of_later_version(store, name, error) from None
            continue  # named in the log when it is skipped
        if job is None or job.may_be(JobName.in_manifest(manifest)):
            heads.setdefault((manifest.training, manifest.writer), manifest)
    return list(heads.values())


def _ambiguous(begins: InitFrom, newest: BackupManifest, rivals: list[BackupManifest]) -> SyncerError:
    furthest = sorted(rivals, key=lambda one: one.step, reverse=True)[:_MOST_LISTED]
    listed = ", ".join(f"{one.training} (step {one.step}, newest backup {one.name})" for one in [newest, *furthest])
    more = f" and {len(rivals) - len(furthest)} more" if len(rivals) > len(furthest) else ""
    return SyncerError(
        f"spec.initFrom.backup: is missing; {begins.url} has several trainings or copies of one, and the newest has "
        f"fewer merges than another: {listed}{more}; use the name of the backup to begin from"
    )


def none_usable(begins: InitFrom, found: list[BackupName], what: str) -> SyncerError:
    """The error if none of the candidates ``found`` can be used; ``what`` is what was looked for."""
    if begins.backup is not None:
        which = f"undamaged backup {begins.backup}"
    else:
        which = what + (f" of training {found[0].training}" if found else "")
    other = "the name of another backup (spec.initFrom.backup), or " if found else ""
    return SyncerError(
        f"spec.initFrom.url: {begins.url} has no {which}; use {other}another folder, or remove spec.initFrom"
    )


def read_named(store: ObjectStore, name: BackupName) -> BackupManifest:
    """The manifest of a backup.

    Raises:
        BackupError: it is damaged.
        SyncerError: a later version of diloco wrote it, or the store does not answer.
    """
    try:
        return stored_manifest(store, name)
    except LaterBackupError as error:
        raise _of_later_version(store, name, error) from None
    except StoreError as error:
        raise unreachable(error) from None


def _of_later_version(store: ObjectStore, name: BackupName, error: LaterBackupError) -> SyncerError:
    return SyncerError(f"spec.initFrom.url: backup {name} of {store.url}: {error}")


def unreachable(error: StoreError) -> SyncerError:
    """The error of a start that did not reach the store."""
    # It may answer at the next start, so it is no mistake in the manifest for certain.
    return SyncerError(f"spec.initFrom.url: {error}", EXIT_UNEXPECTED)
