"""What a syncer process is started with, beside the job."""

from dataclasses import dataclass
from pathlib import Path

from diloco.spec import DiLoCoJob
from diloco.wire.tls import ServerTls


@dataclass(frozen=True, slots=True)
class SyncerOptions:
    """Options of one syncer process."""

    job: DiLoCoJob
    directory: Path
    """Where everything it keeps is; one directory belongs to one job."""
    listen: str = "127.0.0.1:0"
    """``host:port`` for learners; port 0: the system's choice, to be read from ``endpoint.json``."""
    http: str = "127.0.0.1:0"
    """``host:port`` for ``/metrics``, ``/healthz``, ``/readyz`` and ``/status``."""
    tls: ServerTls | None = None
    """Certificates; None: plain text."""
    job_file: Path | None = None
    """Where the job was read from, to be looked at while it runs: pools may be scaled. None: it does not change."""
    record: bool = False
    """Keep every payload that is merged, so that a replay can redo the merges."""
    exit_when_finished: bool = False
    """End some seconds after the job is over, once learners have left; otherwise serve the status until stopped."""
    threads: int | None = None
    """torch threads of a merge. Default: torch's own choice."""
    lock_patience_seconds: float = 300.0
    """How long another syncer that has the directory is waited for (ours): the grace period of its pod twice."""
