"""Whose a backup is, and whether another syncer uploads to the same folder. Only manifests decide, so all agree.

An object store has no locks, so two syncers that begin on an empty folder both find it empty. Each backup therefore
says which was the first of its writer there, and what was there before. From then on all syncers see the same
manifests, and the one that began later stops.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from diloco.core.fragments import Layout
from diloco.spec.job import Metadata
from diloco.syncer.backup.manifest import BackupManifest, BackupName

_MARK_DIGITS: Final = 4


class NotOursError(RuntimeError):
    """The folder belongs to another job, or another syncer uploads to it; one line."""


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

    @property
    def mark(self) -> str:
        """What the unique part of its backups' names begins with, by which unfinished uploads are told apart.

        Empty for the directory in which the training began.
        """
        return "" if self.writer == self.training else self.writer[:_MARK_DIGITS]

    def wrote(self, manifest: BackupManifest) -> bool:
        """Whether a backup is from its own directory, so that it may delete it."""
        return self._has_directory(manifest) and self.job.may_be(JobName.in_manifest(manifest))

    def is_kin(self, manifest: BackupManifest) -> bool:
        """Whether a backup may be one of the job's past: of the same job, or of a directory that was moved here."""
        return self.job.may_be(JobName.in_manifest(manifest)) or (
            self._has_directory(manifest) and manifest.job == self.job.name
        )

    def _has_directory(self, manifest: BackupManifest) -> bool:
        return (manifest.training, manifest.writer) == (self.training, self.writer)


@dataclass(frozen=True, slots=True)
class Use:
    """The use that one writer makes of a folder."""

    first: BackupName
    """Its first backup there, which may have been deleted since."""
    after: BackupName | None
    """The newest that was there before; None: there was none."""


def checked_use(url: str, owner: BackupOwner, backups: Mapping[BackupName, BackupManifest]) -> Use | None:
    """The use that ``owner`` makes of the folder; None: it is about to begin.

    Of two that use a folder at the same time, the one with the later first backup is refused. What a job's earlier
    trainings and directories have left there is not in the way.

    Raises:
        NotOursError: another job has backups there, or another syncer uploads there.
    """
    ours = {name: one for name, one in backups.items() if owner.wrote(one)}
    use = _use(ours) if ours else None
    for theirs in _by_writer({name: one for name, one in backups.items() if name not in ours}):
        newest = max(theirs)
        if use is not None and use.first < _use(theirs).first:
            continue  # it began later, so it is refused
        if not owner.is_kin(theirs[newest]):
            whose = JobName.in_manifest(theirs[newest])
            text = f"{url} has backups of job {whose}; use a folder for {owner.job} alone"
            raise NotOursError(f"spec.syncer.backup.url: {text}")
        if use is not None and (use.after is None or newest > use.after):
            text = f"{url} has backup {newest}, which another syncer has made since this one began to upload there"
            remedy = "stop that one and delete its newer backups, or use another folder for this one"
            raise NotOursError(f"spec.syncer.backup.url: {text}; {remedy}")
    return use


def _by_writer(backups: Mapping[BackupName, BackupManifest]) -> list[dict[BackupName, BackupManifest]]:
    """The backups of each job and directory; first the group with the newest."""
    groups: dict[tuple[JobName, str, str], dict[BackupName, BackupManifest]] = {}
    for name, one in sorted(backups.items(), reverse=True):
        groups.setdefault((JobName.in_manifest(one), one.training, one.writer), {})[name] = one
    return list(groups.values())


def _use(backups: Mapping[BackupName, BackupManifest]) -> Use:
    uses = [Use(BackupName.parse(one.first) or name, BackupName.parse(one.after)) for name, one in backups.items()]
    return min(uses, key=lambda use: use.first)
