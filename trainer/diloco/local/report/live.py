"""The report of a job while it runs, which its syncer serves. It costs the event loop one status."""

import time
from collections.abc import Callable
from pathlib import Path

from diloco.local.report.history import RunHistory
from diloco.local.report.html import HEADERS, render_report
from diloco.local.report.record import RunRecord
from diloco.local.view.units import count_text, duration_text
from diloco.runtime.http import Response
from diloco.spec.status.syncer import SyncerStatus


class LivePage:
    """Draws the page. Not for several threads at once."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        """``directory``: the syncer's own. ``clock`` returns Unix time."""
        self._record = RunRecord(directory)
        self._clock = clock

    def __call__(self, status: SyncerStatus) -> Response:
        """The page of a job that is as in ``status``."""
        history = self.history(status)
        left = "" if status.seconds_left is None else f", about {duration_text(status.seconds_left)} left"
        at = time.strftime("%H:%M:%S UTC", time.gmtime(self._clock()))
        told = f"At {at}: {count_text(status.tokens_per_second)} tokens/s{left}."
        page = render_report(history, "", "The job is over." if status.finished else told)
        return Response(page.encode(), "text/html; charset=utf-8", headers=HEADERS)

    def history(self, status: SyncerStatus) -> RunHistory:
        """The history so far."""
        return self._record.history(status, self._clock(), [one for one in _problems(status) if one])


def _problems(status: SyncerStatus) -> tuple[str, ...]:
    return (
        status.tape_problem and f"The tape: {status.tape_problem}.",
        status.checkpoint.problem and f"Checkpoints: {status.checkpoint.problem}.",
        status.backup.problem and f"Backups: {status.backup.problem}." if status.backup is not None else "",
        f"Links: {status.links.reason}." if status.links is not None else "",
        *(f"{one.name}: {one.problem}." for one in status.trackers if one.problem),
    )
