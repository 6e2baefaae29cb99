"""Writes the finished model, retrying while the disk is full. Owned by the event loop."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

import torch

from diloco.core.fragments import Layout
from diloco.model import ModelError, ModelInfo, export_model, model_from_fragments
from diloco.model.build import vocabulary_of_builtin
from diloco.runtime.files import fsync
from diloco.spec import DiLoCoJob

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

    @property
    def busy(self) -> bool:
        """Whether it is being written."""
        return self._task is not None and not self._task.done()

    def begin(self, write: Callable[[], None]) -> None:
        """Write the model of a job that has just ended. It replaces one whose job end was undone by a crash."""
        with contextlib.suppress(OSError):
            self._path.unlink()
            fsync(self._path.parent)
        self._task = asyncio.create_task(self._until_done(write))

    def resume(self, write: Callable[[], None]) -> None:
        """Write the model, unless it is there, of a job that had ended before this process began."""

        def missing() -> None:
            if not self._path.exists():
                write()
            # It may have been renamed into place just before a power failure.
            fsync(self._path, self._path.parent)

        self._task = asyncio.create_task(self._until_done(missing))

    def cancel(self) -> None:
        """Stop retrying."""
        if self._task is not None:
            self._task.cancel()

    async def _until_done(self, write: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                await loop.run_in_executor(self._executor, write)
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


def export(job: DiLoCoJob, layout: Layout, parameters: Sequence[torch.Tensor], tokens: int, path: Path) -> None:
    """Write the global model (f32, flat, one tensor per fragment), trained on ``tokens`` merged tokens, to ``path``.

    Raises:
        OSError: it could not be written; a file that was at ``path`` before is unchanged.
    """
    module = model_from_fragments(job.spec, layout, parameters)
    info = ModelInfo(
        job=job.metadata.name,
        model=job.spec.model,
        vocabulary_size=vocabulary_of_builtin(job.spec) if job.spec.model.builtin else 0,
        sequence_length=job.spec.training.sequence_length,
        layout_digest=layout.digest,
        tokens=tokens,
    )
    export_model(module, path, info)
