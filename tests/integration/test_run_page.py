"""The report of a run while it grows: as it trains, after its syncer was killed, and at the end."""

import contextlib
import re
import signal
from pathlib import Path
from urllib.error import URLError

import pytest

from diloco.runtime.process.exits import EXIT_INTERRUPTED
from tests.support.http_pages import page
from tests.support.local_run import GENTLE, LEARNERS, LocalRun, write_job

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


def test_the_page_grows_with_a_run_and_outlives_a_killed_syncer(tmp_path: Path) -> None:
    with LocalRun(write_job(tmp_path), "--page", *GENTLE) as run:
        assert run.process.stdout is not None
        (address,) = re.findall(r"page: http://(\S+)/page", run.process.stdout.readline())
        seen: list[str] = []

        def shows(*texts: str) -> bool:
            with contextlib.suppress(URLError, OSError):
                status, shown = page(address, "/page")
                seen[:] = [shown] * (status == 200)
            return bool(seen) and all(text in seen[0] for text in texts)

        run.all_train()
        train = [f"{learner} training" for learner in LEARNERS]
        run.wait_until(lambda: shows("Loss by tokens", "Members of merges", *train))
        run.wait_until(run.merging)
        run.syncer().send_signal(signal.SIGKILL)
        run.wait_until(lambda: shows("restarted (restart 1)"))
        run.all_train()
        # What was before is there too: the syncer has served twice.
        run.wait_until(lambda: shows(*train) and seen[0].count("syncer serves, ") == 2)
        stopped = run.interrupt()
    assert stopped.returncode == EXIT_INTERRUPTED, stopped.stderr
