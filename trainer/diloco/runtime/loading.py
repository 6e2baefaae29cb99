"""What a process shows over HTTP while it loads: alive as long as loading gets on, however long it takes.

A model of many billions of parameters takes longer to make or read than any fixed limit allows. So what is looked at is
whether the process computes or reads. It must not know what is loaded.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

from diloco.runtime.http import Response, Route

STALLED_AFTER_SECONDS: Final = 300.0
"""Loading that neither computes nor reads for so long is taken for stuck (ours)."""
_LEAST_CPU_SECONDS = 1.0
"""What counts as computing: far more than answering health checks takes in all that time."""
_LEAST_BYTES = 2**20
_COUNTED = ("rchar", "read_bytes")
"""Of /proc/self/io: what was asked for by reads, and what came from disks, mapped files included (proc_pid_io(5))."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a process has used so far."""

    cpu_seconds: float
    read_bytes: int


def spent_by_this_process(io: Path = Path("/proc/self/io")) -> Spent:
    """Of this process and all its threads. Where the system does not tell bytes, computing alone counts."""
    try:
        lines = io.read_text().splitlines()
    except OSError:
        lines = []
    counts = dict(line.partition(": ")[::2] for line in lines)
    return Spent(time.process_time(), sum(int(counts.get(name, 0)) for name in _COUNTED))


class Loading:
    """How a process's loading gets on. The HTTP server's threads call its pages; one other calls ``turn_to``."""

    def __init__(
        self, spent: Callable[[], Spent] = spent_by_this_process, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` returns seconds of a monotonic clock."""
        self._spent, self._clock = spent, clock
        self._what = "starts"
        self._mark = (clock(), spent())

    def turn_to(self, what: str) -> None:
        """Loading gets on: ``what`` is done from now on, as /readyz says."""
        self._what = what
        self._mark = (self._clock(), self._spent())

    def stalled_seconds(self) -> float:
        """Since when nothing to speak of was computed or read, as far as anybody has looked."""
        now, spent = self._clock(), self._spent()
        at, before = self._mark
        computed, read = spent.cpu_seconds - before.cpu_seconds, spent.read_bytes - before.read_bytes
        if computed >= _LEAST_CPU_SECONDS or read >= _LEAST_BYTES:
            self._mark = (now, spent)
            return 0.0
        return now - at

    def pages(self) -> dict[str, Route]:
        """The pages by path. Those that show figures say that there are none yet."""
        return {"/healthz": self._health, "/readyz": self._not_yet, "/metrics": self._not_yet, "/status": self._not_yet}

    def _health(self) -> Response:
        stalled = self.stalled_seconds()
        code = HTTPStatus.OK if stalled < STALLED_AFTER_SECONDS else HTTPStatus.SERVICE_UNAVAILABLE
        return Response.text(f"{self._what}; no computing or reading for {stalled:.0f} s\n", code)

    def _not_yet(self) -> Response:
        return Response.text(f"not serving yet: {self._what}\n", HTTPStatus.SERVICE_UNAVAILABLE)
