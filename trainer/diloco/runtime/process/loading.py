"""HTTP pages of a process while it loads: it is healthy as long as loading makes progress, however long it takes.

A model of many billions of parameters takes longer to build or read than any fixed limit. So progress is measured by
whether the process computes or reads.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

from diloco.runtime.http import Response, Route

STALLED_AFTER_SECONDS: Final = 300.0
"""Loading that neither computes nor reads for this long counts as stuck (ours)."""
_LEAST_CPU_SECONDS = 1.0
"""Least CPU time that counts as computing: far more than health checks take in that time."""
_LEAST_BYTES = 2**20
_COUNTED = ("rchar", "read_bytes")
"""Fields of /proc/self/io: bytes asked for by reads, and bytes from disks, mapped files included (proc_pid_io(5))."""


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU time and bytes read by a process so far."""

    cpu_seconds: float
    read_bytes: int


def spent_by_this_process(io: Path = Path("/proc/self/io")) -> Spent:
    """Values of this process and all its threads. If the system does not report bytes, only CPU time counts."""
    try:
        lines = io.read_text().splitlines()
    except OSError:
        lines = []
    counts = dict(line.partition(": ")[::2] for line in lines)
    return Spent(time.process_time(), sum(int(counts.get(name, 0)) for name in _COUNTED))


class Loading:
    """Watches a process's loading. The HTTP server's threads call its pages; one other thread calls ``switch_to``."""

    def __init__(
        self,
        spent: Callable[[], Spent] = spent_by_this_process,
        clock: Callable[[], float] = time.monotonic,
        waits: Callable[[], bool] = lambda: False,
    ) -> None:
        """``clock`` returns seconds of a monotonic clock. ``waits``: whether it waits for other processes that load."""
        self._spent, self._clock, self._waits = spent, clock, waits
        self._what, self._longest = "starts", STALLED_AFTER_SECONDS
        self._mark = (clock(), spent())

    def switch_to(self, what: str, longest_seconds: float = STALLED_AFTER_SECONDS) -> None:
        """Note progress: from now on loading does ``what``, which /readyz shows.

        ``longest_seconds``: how long that may neither compute nor read, as while a file reaches the disk.
        """
        self._what, self._longest = what, longest_seconds
        self._mark = (self._clock(), self._spent())

    def stalled_seconds(self) -> float:
        """Time since loading last computed or read a significant amount, or waited, as seen by calls of this method."""
        now, spent = self._clock(), self._spent()
        at, before = self._mark
        computed, read = spent.cpu_seconds - before.cpu_seconds, spent.read_bytes - before.read_bytes
        if computed >= _LEAST_CPU_SECONDS or read >= _LEAST_BYTES or self._waits():
            self._mark = (now, spent)
            return 0.0
        return now - at

    def pages(self) -> dict[str, Route]:
        """The pages by path. Metrics and status pages say that there are no values yet."""
        return {"/healthz": self._health, "/readyz": self._not_yet, "/metrics": self._not_yet, "/status": self._not_yet}

    def _health(self) -> Response:
        stalled = self.stalled_seconds()
        code = HTTPStatus.OK if stalled < self._longest else HTTPStatus.SERVICE_UNAVAILABLE
        return Response.text(f"{self._what}; no computing or reading for {stalled:.0f} s\n", code)

    def _not_yet(self) -> Response:
        return Response.text(f"not serving yet: {self._what}\n", HTTPStatus.SERVICE_UNAVAILABLE)
