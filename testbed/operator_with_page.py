"""``diloco-operator`` for a machine without a cluster's DNS: all syncers' status comes from ``URL/JOB/status``.

    python operator_with_page.py FLAGS ...    # DILOCO_PAGE_OF_SYNCERS is the URL

Everything else is the unchanged operator.
"""

import functools
import os
import sys

from diloco_operator import process
from diloco_operator.jobs.jobs import JobKey
from diloco_operator.jobs.observe.syncer import SyncerClient
from diloco_operator.main import main

PAGE = "DILOCO_PAGE_OF_SYNCERS"
PROGRAM_WITH_PAGE = (__file__,)
"""The program that Python runs."""


def _url(job: JobKey) -> str:
    return f"{os.environ[PAGE]}/{job.name}/status"


if __name__ == "__main__":
    process.SyncerClient = functools.partial(SyncerClient, url_of=_url)  # type: ignore[attr-defined,assignment] # made where it is
    sys.exit(main())
