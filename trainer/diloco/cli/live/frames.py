"""Reads the state of a run or of jobs as a frame: drawn, as lines, and as JSON. Each kind of target has a source."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from rich.console import RenderableType
from rich.text import Text

from diloco.cli.live.cluster_jobs import Jobs, SeenJob, SyncerUnseenError
from diloco.cli.live.cluster_view import Closeup, job_line, job_view, jobs_table, news_lines
from diloco.cli.live.local_runs import StoppedRunError, Summary, ask
from diloco.local.status_poll import Seen
from diloco.local.view.screen import progress_line, render
from diloco.local.view.snapshot import BandwidthMeter, RunSnapshot
from diloco.runtime.process.exits import EXIT_JOB_FAILED, EXIT_OK
from diloco.spec.status.engine import OVER, Phase
from diloco.spec.status.syncer import SyncerStatus

_UNSEEN_LOOKS: Final = 5
"""Frames without asking an unreachable syncer again, as each attempt may take its whole timeout."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The state at one moment."""

    drawn: RenderableType
    lines: tuple[str, ...]
    """For output that is not a terminal."""
    document: Any
    over: bool = False
    """Whether nothing will change any more."""
    exit_code: int = EXIT_OK


class Source(Protocol):
    """Where frames come from."""

    def read(self, rows: int | None) -> Frame:
        """The current state; ``rows``: most learners to show, None: all.

        Raises:
            RuntimeError, ValueError: of one of diloco's own classes; it cannot be read.
        """


class LocalSource:
    """A run on this machine, or a syncer at an address."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._bandwidth = BandwidthMeter()

    def read(self, rows: int | None) -> Frame:
        """Ask the syncer, or read the summary of a run that is over."""
        del rows  # a run on one machine has few learners
        try:
            answer = ask(self._where)
        except StoppedRunError as stopped:
            document = {
                "job": stopped.job,
                "phase": "Stopped",
                "merged_tokens": stopped.merged_tokens,
                "budget_tokens": stopped.budget_tokens,
            }
            return Frame(Text(str(stopped)), (str(stopped),), document, over=True)
        if isinstance(answer, Summary):
            snapshot, document = answer.snapshot, answer.content
        else:
            snapshot, document = _with_bandwidth(answer, self._bandwidth), answer.model_dump(mode="json")
        phase = document["phase"]
        return Frame(
            render(snapshot, ()),
            (progress_line(snapshot),),
            document,
            over=isinstance(answer, Summary) or phase in OVER,
            exit_code=EXIT_JOB_FAILED if phase == Phase.FAILED else EXIT_OK,
        )


class JobSource:
    """One job in a cluster."""

    def __init__(self, jobs: Jobs, namespace: str, name: str, clock: Callable[[], datetime]) -> None:
        self._jobs = jobs
        self._namespace = namespace
        self._name = name
        self._clock = clock
        self._bandwidth = BandwidthMeter()
        self._before: SeenJob | None = None
        self._unseen = ""
        self._looks_to_wait = 0.0

    def read(self, rows: int | None) -> Frame:
        """Read the job, and its syncer's status if possible."""
        job = self._jobs.one(self._namespace, self._name)
        status = None if job.over else self._ask_syncer(job)
        snapshot = None if status is None else _with_bandwidth(status, self._bandwidth)
        closeup = Closeup(snapshot, "" if job.over or job.note else self._unseen, rows)
        lines = (*news_lines(job, self._before), job_line(job))
        self._before = job
        failed = job.status.phase == "Failed"
        return Frame(
            job_view(job, closeup, self._clock()),
            lines,
            {
                **_document(job),
                "syncer": None if status is None else status.model_dump(mode="json"),
                "syncerUnseen": self._unseen or None,
            },
            over=job.over,
            exit_code=EXIT_JOB_FAILED if failed else EXIT_OK,
        )

    def _ask_syncer(self, job: SeenJob) -> SyncerStatus | None:
        if self._looks_to_wait > 0:
            self._looks_to_wait -= 1
            return None
        try:
            status = self._jobs.syncer(job)
        except SyncerUnseenError as error:
            self._unseen = str(error)
            self._looks_to_wait = float("inf") if error.lasting else _UNSEEN_LOOKS
            return None
        self._unseen = ""
        return status


class JobsSource:
    """The jobs of a namespace, or of all of them."""

    def __init__(self, jobs: Jobs, namespace: str | None) -> None:
        self._jobs = jobs
        self._namespace = namespace

    def read(self, rows: int | None) -> Frame:
        """Read all of them."""
        del rows  # a job is one row, and all are shown
        jobs = self._jobs.every(self._namespace)
        several = self._namespace is None
        lines = tuple(f"{job.namespace}/{job_line(job)}" if several else job_line(job) for job in jobs)
        return Frame(
            jobs_table(jobs, namespaces=several), lines or ("no jobs",), {"jobs": [_document(j) for j in jobs]}
        )


def _document(job: SeenJob) -> dict[str, Any]:
    return {"namespace": job.namespace, "name": job.name, "status": job.status.as_object()}


def _with_bandwidth(status: SyncerStatus, meter: BandwidthMeter) -> RunSnapshot:
    return replace(RunSnapshot.from_status(status), bandwidth=meter.read(Seen(status, time.monotonic())))


def now() -> datetime:
    """The current time, with a time zone as in conditions."""
    return datetime.now(UTC)
