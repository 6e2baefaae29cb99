"""Follows the manifest and the orders beside it while the job runs."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from diloco.core.engine.events import Event, LearnerFailed, LearnerReadmitted, LearnersPlanned
from diloco.spec import JobSpec
from diloco.spec.names.learner_orders import FAILED_FILE, READMITTED_FILE
from diloco.syncer.job_file import JobFile
from diloco.syncer.options import SyncerOptions
from diloco.syncer.order_file import OrderFile


class FollowedFiles:
    """The files of one job; none if its manifest is no file. Owned by the event loop."""

    def __init__(
        self,
        options: SyncerOptions,
        epoch: int,
        checks: Executor,
        post: Callable[[Event], None],
        planned: Callable[[JobSpec, LearnersPlanned], None],
    ) -> None:
        """Files are read on ``checks``; ``planned`` is called before a new plan is posted."""
        self._checks, self._post, self._planned = checks, post, planned
        self._job_file: JobFile | None = None
        self._order_files: tuple[OrderFile, ...] = ()
        if (path := options.job_file) is not None:
            self._job_file = JobFile(path, options.job)
            orders = ((READMITTED_FILE, LearnerReadmitted), (FAILED_FILE, LearnerFailed))
            self._order_files = tuple(OrderFile(path.parent / name, epoch, kind) for name, kind in orders)

    @property
    def wanted_tokens(self) -> int:
        """The budget that the manifest has now; 0 if none is followed."""
        return 0 if self._job_file is None else self._job_file.job.spec.training.tokens

    async def poll(self) -> None:
        """Post what is new."""
        if self._job_file is None:
            return
        for event in await asyncio.get_running_loop().run_in_executor(self._checks, self._read, self._job_file):
            if isinstance(event, LearnersPlanned):
                self._planned(self._job_file.job.spec, event)
            self._post(event)

    def _read(self, job_file: JobFile) -> list[Event]:
        orders = [order for order_file in self._order_files for order in order_file.poll()]
        return [*orders, *job_file.poll()]
