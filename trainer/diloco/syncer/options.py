"""Options of a syncer process, including the job."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from diloco.runtime.http import Response
from diloco.runtime.process.descriptors import connections_allowed
from diloco.spec import DiLoCoJob
from diloco.spec.status.syncer import SyncerStatus
from diloco.wire.server.bandwidth import LimitOf
from diloco.wire.server.server import ServerOptions
from diloco.wire.tls.tls import ServerTls


@dataclass(frozen=True, slots=True)
class SyncerOptions:
    """Options of one syncer process."""

    job: DiLoCoJob
    directory: Path
    """Where it keeps its files; one directory belongs to one job."""
    listen: str = "127.0.0.1:0"
    """``host:port`` for learners; port 0: chosen by the system and written to ``endpoint.json``."""
    http: str = "127.0.0.1:0"
    """``host:port`` for ``/metrics``, ``/healthz``, ``/readyz``, ``/status`` and ``/page``."""
    page: Callable[[SyncerStatus], Response] | None = None
    """Draws ``/page`` in a thread of the HTTP server. None: there is no such page."""
    tls: ServerTls | None = None
    """Certificates; None: plain text."""
    job_file: Path | None = None
    """File that the job was read from, polled while it runs, as pools may be scaled. None: the job does not change."""
    record: bool = False
    """Keep every merged payload, so that a replay can redo the merges."""
    exit_when_finished: bool = False
    """Exit some seconds after the job is over, once learners have left; otherwise serve the status until stopped."""
    threads: int | None = None
    """torch threads of a merge. Default: torch's own choice."""
    lock_patience_seconds: float = 300.0
    """How long to wait for another syncer that uses the directory (ours): twice the grace period of its pod."""

    def server(self, limit_of: LimitOf) -> ServerOptions:
        """How it serves learners; ``limit_of``: the limit of a learner's transfers."""
        return ServerOptions(
            address=self.listen,
            tls=self.tls,
            job=self.job.metadata.name,
            connections=connections_allowed(),
            limit_of=limit_of,
        )
