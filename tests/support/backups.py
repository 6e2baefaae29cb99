"""A folder of backups, with a small training's checkpoints in it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from diloco.core.engine.engine import Engine
from diloco.core.engine.options import EngineOptions
from diloco.runtime.object_store import ObjectStore, open_store
from diloco.spec import DiLoCoJob
from diloco.spec.backup import InitFrom
from diloco.spec.job import Metadata
from diloco.syncer.backup.manifest import BackupManifest, complete
from diloco.syncer.backup.ownership import BackupOwner, JobName
from diloco.syncer.backup.upload import BackupSource, Uploader
from diloco.syncer.disk.checkpoint import (
    CheckpointContent,
    read_checkpoint_manifest,
    write_checkpoint,
)
from diloco.syncer.prepare import StartState, prepare
from tests.support.small_job import named_job, small_job

TRAINING = "0123456789abcdef"


def job_of(name: str = "made", **changes: Any) -> DiLoCoJob:
    """A pico job of this name."""
    return named_job(name, small_job(**changes))


def in_namespace(namespace: str, job: DiLoCoJob | None = None) -> DiLoCoJob:
    """The same job in this namespace."""
    job = job or job_of()
    return job.model_copy(update={"metadata": Metadata(name=job.metadata.name, namespace=namespace)})


def value_of(state: StartState) -> float:
    """By which a checkpoint is told apart."""
    return float(state.store.current(0).parameters[0])


def beginning_from(job: DiLoCoJob, begins: InitFrom) -> DiLoCoJob:
    """The same job with ``initFrom``."""
    return job.model_copy(update={"spec": job.spec.model_copy(update={"init_from": begins})})


class Moved(list[int]):
    """What an upload sends, block by block; nothing stops it."""

    def go_on(self, size: int) -> bool:
        """Of one block."""
        self.append(size)
        return True


class Trained:
    """A training whose checkpoints are told apart by the value of all of their parameters.

    ``writer`` is the id of its syncer's directory; default: the one in which the training began.
    ``store`` is where it is backed up; default: the folder ``kept`` beside its own.
    """

    def __init__(
        self,
        folder: Path,
        job: DiLoCoJob | None = None,
        training: str = TRAINING,
        writer: str | None = None,
        store: ObjectStore | None = None,
    ) -> None:
        self.job = job or job_of()
        self.store = store or folder_store(folder.parent / "kept")
        self.checkpoints = folder / "checkpoints"
        self.beginning: StartState = prepare(self.job, self.checkpoints)
        name = JobName.of(self.job.metadata)
        self.owner = BackupOwner(name, training, self.beginning.layout, writer or training)
        self.uploader = Uploader(self.owner)

    def checkpoint(self, value: float, first: int = 0) -> str:
        """Write a checkpoint with this value in all fragments, or from the ``first`` one on; its name."""
        layout, store, outer = self.beginning.layout, self.beginning.store, self.beginning.outer
        for fragment in layout.fragments[first:]:
            store.put(fragment.index, 0, torch.full((fragment.numel,), value))
        engine = Engine(EngineOptions.from_job(self.job, layout), 1).snapshot(0.0)
        content = CheckpointContent(self.owner.job.name, layout, 3, store.hold(), engine, outer, "test")
        return write_checkpoint(self.checkpoints, content).name

    def source(self, name: str, step: int = 0) -> BackupSource:
        """What an upload of this checkpoint takes."""
        folder = self.checkpoints / name
        digests = {file: one.sha256 for file, one in read_checkpoint_manifest(folder).files.items()}
        return BackupSource(name, tuple(folder / file for file in ("manifest.json", *digests)), digests, step)

    def upload(self, name: str, go_on: Callable[[int], bool] = lambda _: True) -> BackupManifest:
        """Upload this checkpoint."""
        return self.uploader.upload(self.store, self.source(name), 3, go_on)

    def backed_up(self, value: float, keep: int = 3, step: int = 0) -> BackupManifest:
        """Write a checkpoint with this value and upload it."""
        return self.uploader.upload(self.store, self.source(self.checkpoint(value), step), keep, lambda _: True)

    def restarted(self) -> None:
        """Its process starts again: it has forgotten what it uploaded."""
        self.uploader = Uploader(self.owner)

    @property
    def kept(self) -> list[str]:
        """Names of the complete backups, also of other trainings."""
        return [str(one) for one in complete(self.store.names())]


def folder_store(folder: Path) -> ObjectStore:
    """The store in a folder of this machine."""
    return open_store(str(folder))
