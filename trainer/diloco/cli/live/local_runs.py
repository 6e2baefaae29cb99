"""Finds the syncer of a run on this machine, or the summary that the run has left."""

import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from diloco.local.directory import RunDirectory
from diloco.local.status_poll import StatusError, fetch_status, read_status
from diloco.local.view.snapshot import Bandwidth, RunSnapshot
from diloco.local.view.units import loss_text
from diloco.runtime.addresses import parse_address
from diloco.runtime.files import UnusableFileError, read_json
from diloco.spec import DiLoCoJob, load_job
from diloco.spec.status.syncer import SyncerStatus


class WhereError(ValueError):
    """The argument is neither a run's directory nor an address; the text says what it is."""


class NotServingYetError(StatusError):
    """The run goes on, and its syncer does not answer: it starts, or starts again."""


class StoppedRunError(WhereError):
    """The run was stopped before its end; the text says how to continue it."""

    def __init__(self, where: str, job: DiLoCoJob, latest: SyncerStatus | None) -> None:
        """``latest``: its last status, if its syncer has left one."""
        self.job = job.metadata.name
        self.merged_tokens = latest.merged_tokens if latest is not None else 0.0
        self.budget_tokens = job.spec.training.tokens
        loss = f", evaluated loss {loss_text(latest.eval_loss)}" if latest is not None else ""
        again = shlex.join(["diloco", "run", str(RunDirectory(Path(where)).job), "--output", where, "--resume"])
        done = f"{self.merged_tokens / self.budget_tokens:.0%} of its tokens{loss}"
        super().__init__(f"{where}: job {self.job} was stopped at {done}; to continue, run: {again}")


def run_directory(path: Path) -> Path:
    """``path``, if it is a directory.

    Raises:
        WhereError: it is not; the text says what it is.
    """
    if path.is_dir():
        return path
    raise WhereError(f"{path}: {_found(path)}; use the directory of a run")


def _found(path: Path) -> str:
    return "is not a directory" if path.exists() else "does not exist"


@dataclass(frozen=True, slots=True)
class Summary:
    """What a finished run has left."""

    content: Any
    snapshot: RunSnapshot
    """The same for the view of a running job; rates are means over the run."""


def ask(where: str) -> SyncerStatus | Summary:
    """The state of the run at ``where``: a run's directory, ``HOST:PORT`` or ``http://HOST:PORT`` of a syncer.

    Raises:
        WhereError: it is none of these.
        StoppedRunError: it was stopped.
        StatusError: no syncer answers there.
    """
    directory = Path(where)
    if not directory.is_dir():
        return fetch_status(_address(where))
    run = RunDirectory(directory)
    if not run.summary.exists():
        return _ask_syncer(where, run)
    summary = run.summary
    try:
        content = read_json(summary)
    except UnusableFileError as error:
        raise WhereError(f"{error}; the run's report.html may say more") from None
    try:
        return Summary(content, _snapshot(content))
    except (KeyError, TypeError, ValidationError):
        raise WhereError(f"{summary}: is not the summary of a run; 'diloco run --resume' writes it again") from None


def page_address(where: str) -> str:
    """HTTP address of the syncer at ``where``, a run's directory or an address, whether it answers or not.

    Raises:
        WhereError: it is neither, or the run has no syncer now.
    """
    if not Path(where).is_dir():
        return _address(where)
    run = RunDirectory(Path(where))
    killed = run.lock.is_file() and not run.in_use  # it leaves the address behind
    if killed or (address := _endpoint(run.root)) is None:
        raise WhereError(f"{where}: no syncer serves here; a run that is over has its report in report.html")
    return address


def _ask_syncer(where: str, run: RunDirectory) -> SyncerStatus:
    # Read each time, as a restarted syncer may have another port.
    address = _endpoint(run.root)
    try:
        if address is not None:
            return fetch_status(address)
    except StatusError as error:
        if run.in_use:
            raise NotServingYetError(str(error)) from error
        if not run.job.is_file():
            raise
    if run.in_use:
        raise NotServingYetError(f"{where}: its syncer does not serve yet")
    if not run.job.is_file():
        raise WhereError(f"{where}: is not the directory of a run: it has neither job.yaml nor syncer/endpoint.json")
    latest = None
    with suppress(StatusError):
        latest = read_status(run.syncer)
    raise StoppedRunError(where, load_job(run.job), latest)


def _snapshot(summary: Any) -> RunSnapshot:
    seconds = max(summary["wall_seconds"], 0.001)
    status = {
        **summary,
        "epoch": 0,
        "phase_reason": summary["reason"],
        "elapsed_seconds": seconds,
        "syncer_step": summary["syncer_steps"],
        "merged_tokens": summary["tokens"],
        "tokens_per_second": summary["tokens"] / seconds,
        "time_seconds": summary["time_shares"],
        "learners": [{**one, "state": "Ended", "time_seconds": one["time_shares"]} for one in summary["learners"]],
        "recoveries": {},
    }
    moved = Bandwidth(summary["bytes_pushed"] / seconds, summary["bytes_pulled"] / seconds)
    processes = {one["id"]: one["processes"] for one in summary["learners"]}
    return replace(RunSnapshot.from_status(SyncerStatus.model_validate(status), processes), bandwidth=moved)


def _endpoint(directory: Path) -> str | None:
    for path in (directory / "syncer" / "endpoint.json", directory / "endpoint.json"):
        try:
            return str(read_json(path)["http"])
        except (UnusableFileError, KeyError, TypeError):
            continue
    return None


def _address(where: str) -> str:
    try:
        address = urlsplit(where).netloc if where.startswith("http://") else where
        parse_address(address)
    except ValueError:
        raise WhereError(
            f"{where}: {_found(Path(where))}; use the directory of a run, HOST:PORT or http://HOST:PORT of its syncer, "
            "or job/NAME for a job in a cluster"
        ) from None
    return address
