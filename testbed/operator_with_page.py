"""``diloco-operator`` for a machine without a cluster's network: all syncers' status comes from ``URL/JOB/status``.

    python operator_with_page.py FLAGS ...    # DILOCO_PAGE_OF_SYNCERS is the URL

Everything else is the unchanged operator.
"""

import os
import sys

import aiohttp

from diloco_operator.decide.observed import SyncerAway, SyncerStatusView
from diloco_operator.jobs.jobs import JobKey
from diloco_operator.jobs.observe.syncer import Planned, SyncerClient
from diloco_operator.main import main
from diloco_operator.process import run

PAGE = "DILOCO_PAGE_OF_SYNCERS"
PROGRAM_WITH_PAGE = (__file__,)
"""The program that Python runs."""


class _PageClient(SyncerClient):
    def __init__(self, session: aiohttp.ClientSession) -> None:
        super().__init__(session, lambda job: f"{os.environ[PAGE]}/{job}/status")

    async def ask(self, job: JobKey, address: str, planned: Planned) -> SyncerStatusView | SyncerAway:
        del address
        return await super().ask(job, job.name, planned)


if __name__ == "__main__":
    run.SyncerClient = _PageClient  # type: ignore[attr-defined,assignment] # made where it is
    sys.exit(main())
