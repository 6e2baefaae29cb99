"""Writes the finished model, retrying while the disk is full. Owned by the event loop. Reads a checkpoint's model."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from diloco.core.fragments import Layout
from diloco.model import ModelError, ModelInfo, export_model
from diloco.model.build import blank_model, layout_of_job, model_from_fragments, vocabulary_of_builtin
from diloco.model.export import export_tensors, info_of
from diloco.model.fragments import trained_parameters, whole_tensors
from diloco.runtime.files import fsync
from diloco.spec import DiLoCoJob
from diloco.syncer.disk.checkpoint import load_checkpoint, newest_checkpoint
from diloco.syncer.errors import SyncerError

_log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""Time between attempts while the disk is full."""


class Exporter:
    """Writes one file, retrying until it succeeds."""

    def __init__(self, path: Path, executor: Executor) -> None:
        """Write to ``path`` in a thread of ``executor``."""
        self._path = path
        self._executor = executor
        self._task: asyncio.Task[None] | None = None
        self.exported = False
        """The file is complete and would survive a power failure."""
        self.digest = ""
        """SHA-256 of the file, hexadecimal; empty: it was there before."""

    @property
    def busy(self) -> bool:
        """Whether it is being written."""
        return self._task is not None and not self._task.done()

    def begin(self, write: Callable[[], str]) -> None:
        """Write the model of a job that has just ended. It replaces one whose job end was undone by a crash.

        ``write`` returns the file's SHA-256.
        """
        with contextlib.suppress(OSError):
            self._path.unlink()
            fsync(self._path.parent)
        self._task = asyncio.create_task(self._until_done(write))

    def resume(self, write: Callable[[], str], tokens: int) -> None:
        """Write the model of a job that had ended before this process began, unless it is there.

        ``tokens``: merged ones. A file with fewer is of an earlier end, after which the budget was raised.
        """

        def missing() -> str:
            try:
                there = info_of(self._path).tokens == tokens
            except ModelError:
                there = False
            digest = "" if there else write()
            # It may have been renamed into place just before a power failure.
            fsync(self._path, self._path.parent)
            return digest

        self._task = asyncio.create_task(self._until_done(missing))

    def cancel(self) -> None:
        """Stop retrying."""
        if self._task is not None:
            self._task.cancel()

    async def _until_done(self, write: Callable[[], str]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                self.digest = await loop.run_in_executor(self._executor, write)
            except OSError as error:
                _log.error("cannot export the model, retrying: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
            except ModelError as error:
                _log.error("cannot export the model: %s; retrying when the syncer restarts", error)
                return
            else:
                self.exported = True
                _log.info("the model is at %s", self._path)
                return


def export(job: DiLoCoJob, layout: Layout, parameters: Sequence[torch.Tensor], tokens: int, path: Path) -> str:
    """Write the global model (f32, flat, one tensor per fragment), trained on ``tokens`` merged tokens, to ``path``.

    Returns the file's SHA-256.

    Raises:
        OSError: it could not be written; a file that was at ``path`` before is unchanged.
        ModelError: the model cannot be built, or differs in what is not trained.
    """
    info = ModelInfo(
        job=job.metadata.name,
        model=job.spec.model,
        vocabulary_size=vocabulary_of_builtin(job.spec),
        sequence_length=job.spec.training.sequence_length,
        layout_digest=layout.digest,
        tokens=tokens,
    )
    trained, values = trained_parameters(blank_model(job.spec)), whole_tensors(layout, parameters)
    same = {name: one.shape for name, one in trained.items()} == {name: one.shape for name, one in values.items()}
    if same and (layout.constants == "" or job.spec.model.adapter is not None):
        # The file has only what was trained: no model has to be built, which would take its memory once more.
        return export_tensors(values, path, info)
    return export_model(model_from_fragments(job.spec, layout, parameters), path, info)


def model_of_checkpoint(job: DiLoCoJob, folder: Path) -> nn.Module:
    """The global model of the checkpoint in ``folder``, or of the newest one of the run in ``folder``.

    Raises:
        UnusableFileError, SyncerError: there is none, or it is damaged or of another job.
        ModelError: the model cannot be built, or differs in what is not trained.
    """
    layout, name = layout_of_job(job.spec), job.metadata.name
    if (folder / "manifest.json").exists():
        loaded = load_checkpoint(folder.absolute().parent, folder.absolute().name, layout, name)
    else:
        newest, broken = newest_checkpoint(folder / "syncer" / "checkpoints", layout, name, lambda *_: None)
        if newest is None:
            raise SyncerError(next(iter(broken.values()), f"{folder}: has no model and no checkpoint yet"))
        loaded = newest
    layout = replace(layout, constants=loaded.manifest.layout.partition(".")[2])
    return model_from_fragments(job.spec, layout, loaded.parameters)
