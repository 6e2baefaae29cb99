"""Whose a folder of backups is: of the syncer that made the newest one there, so that at most one goes on.

An object store has no locks. But names of backups are ordered, so of several syncers that upload to one folder only one
finds that the newest is its own. Each deletes only what it has made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from diloco.core.fragments import Layout
from diloco.runtime.object_store import ObjectStore
from diloco.spec.job import Metadata
from diloco.syncer.backup.manifest import BackupError, BackupManifest, BackupName, stored_manifest


class NotOursError(RuntimeError):
    """The folder belongs to another job or training, or another syncer uploads to it; one line."""


@dataclass(frozen=True, slots=True)
class JobName:
    """A job, as its backups name it. The same job in a new cluster, with a new uid, has the same."""

    name: str
    namespace: str = ""
    """Empty: unknown."""

    @classmethod
    def of(cls, metadata: Metadata) -> Self:
        """Of a manifest; outside of clusters it may leave the namespace out."""
        given = "namespace" in metadata.model_fields_set
        return cls(metadata.name, metadata.namespace if given else "")

    @classmethod
    def in_manifest(cls, manifest: BackupManifest) -> Self:
        """Of a backup."""
        return cls(manifest.job, manifest.namespace)

    def may_be(self, other: "JobName") -> bool:
        """Whether it is the other, as far as is known."""
        known = self.namespace and other.namespace
        return self.name == other.name and (not known or self.namespace == other.namespace)

    def __str__(self) -> str:
        return f"{self.name[:100]!r}" + (f" in namespace {self.namespace!r}" if self.namespace else "")


@dataclass(frozen=True, slots=True)
class BackupOwner:
    """Whose backups a syncer makes."""

    job: JobName
    training: str
    """Id of the training."""
    layout: Layout
    writer: str
    """Id of the syncer's directory; in the directory in which the training began, that of the training."""

    def wrote(self, name: BackupName) -> bool:
        """Whether a backup is from its own directory, so that it may delete it."""
        return name.is_by(self.training, self.writer)


def check_owner(store: ObjectStore, owner: BackupOwner, backups: Sequence[BackupName], last: BackupName | None) -> None:
    """Check that no other syncer uploads to the folder, which has these ``backups``, oldest first.

    ``last`` is what this process has uploaded last, so that one with a copy of its directory is noticed too. A syncer
    without backups there goes on with those of its own training only: it was restored from them.

    Raises:
        NotOursError: another job, training or syncer uploads there.
        StoreError: the store does not answer.
    """
    newest = backups[-1] if backups else None
    last = last or max(filter(owner.wrote, backups), default=None)
    if newest is None or (last is not None and newest <= last):
        return
    where = f"spec.syncer.backup.url: {store.url} has backup"
    if last is not None:
        text = f"{where} {newest}, which another syncer has made since {last}"
        raise NotOursError(f"{text}; stop that one and delete its newer backups, or use another folder for this one")
    try:
        job = JobName.in_manifest(stored_manifest(store, newest))
    except BackupError:
        job = owner.job  # as far as is known
    if not owner.job.may_be(job):
        raise NotOursError(f"{where}s of job {job}; use a folder for {owner.job} alone")
    if newest.training != owner.training:
        remedy = "use another folder, or begin the job with spec.initFrom to go on with that training"
        raise NotOursError(f"{where} {newest} of another training of this job; {remedy}")
