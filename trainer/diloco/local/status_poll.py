"""Reads a syncer's status: polls ``/status`` in a thread of its own, so that a slow answer blocks nothing else."""

import http.client
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from pydantic import ValidationError

from diloco.runtime.addresses import parse_address
from diloco.runtime.files import UnusableFileError
from diloco.spec.status import syncer
from diloco.spec.status.syncer import SyncerStatus

_LIMIT_BYTES = 64 << 20
_POLL_SECONDS = 0.5


class StatusError(RuntimeError):
    """No status could be read; the text is one line that names the address and why."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A status, and when it was received."""

    status: SyncerStatus
    monotonic: float


def fetch_status(address: str, *, timeout_seconds: float = 5.0) -> SyncerStatus:
    """The status of the syncer at ``address`` (``host:port`` of its HTTP server).

    Raises:
        StatusError: there is no answer, or not a status.
    """
    host, port = parse_address(address)
    # http.client rather than urllib: it uses no proxy from the environment between two processes of one machine.
    connection = http.client.HTTPConnection(host, port, timeout=timeout_seconds)
    try:
        connection.request("GET", "/status")
        response = connection.getresponse()
        body = response.read(_LIMIT_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise StatusError(f"no syncer answers at http://{address}/status ({_plain(error)})") from error
    finally:
        connection.close()
    if response.status == HTTPStatus.SERVICE_UNAVAILABLE:
        raise StatusError(f"http://{address}/status: {body[:200].decode(errors='replace').strip()}")
    try:
        return SyncerStatus.model_validate_json(body)
    except ValidationError as error:
        raise StatusError(f"http://{address}/status answers, but not like a syncer of this version") from error


def read_status(directory: Path) -> SyncerStatus:
    """The status that a syncer has left in its directory.

    Raises:
        StatusError: there is none, or it cannot be read.
    """
    try:
        return syncer.read_status(directory / syncer.FILE)
    except UnusableFileError as error:
        raise StatusError(str(error)) from error


class StatusWatch:
    """Polls regularly, and keeps the last answer."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stopped = threading.Event()
        self.seen: Seen | None = None
        """The last answer; None before the first."""
        self._thread = threading.Thread(target=self._run, name="status-watch", daemon=True)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_POLL_SECONDS):
            try:
                status = fetch_status(self._address, timeout_seconds=2.0)
            except StatusError:
                continue
            self.seen = Seen(status, time.monotonic())


def _plain(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
