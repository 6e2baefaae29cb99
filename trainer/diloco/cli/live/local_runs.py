"""Finds the syncer of a run on this machine, or the summary that the run has left."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from diloco.local.status_poll import fetch_status
from diloco.local.view.snapshot import Bandwidth, RunSnapshot
from diloco.runtime.addresses import parse_address
from diloco.runtime.files import UnusableFileError, read_json
from diloco.spec.status.syncer import SyncerStatus


class WhereError(ValueError):
    """The argument is neither a run's directory nor an address; the text says what it is."""


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
        StatusError: no syncer answers there.
    """
    directory = Path(where)
    if not directory.is_dir():
        return fetch_status(_address(where))
    # Read each time, as a restarted syncer may have another port.
    address = _endpoint(directory)
    summary = directory / "summary.json"
    if address is not None and not summary.is_file():
        return fetch_status(address)
    if not summary.exists():
        raise WhereError(
            f"{where}: is not the directory of a run: it has neither syncer/endpoint.json nor summary.json"
        )
    try:
        content = read_json(summary)
    except UnusableFileError as error:
        raise WhereError(f"{error}; the run's report.html may say more") from None
    try:
        return Summary(content, _snapshot(content))
    except (KeyError, TypeError, ValidationError):
        raise WhereError(f"{summary}: is not the summary of a run; 'diloco run --resume' writes it again") from None


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
