"""One time axis for a run: seconds under supervision. Pure.

They count from the first start, without the gaps between an interruption and its resumption. The journal has Unix
times; a tape has the Unix time of its start, and seconds since then.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

from diloco.local.journal import Entry


class RunClock:
    """Converts Unix times to seconds of the run."""

    def __init__(self, journal: Sequence[Entry]) -> None:
        """Find the sessions in a journal: each lasts from a ``run`` entry to the last one before the next."""
        self._starts: list[float] = []
        self._offsets: list[float] = []
        last = 0.0
        for entry in journal:
            if entry.event == "run" or not self._starts:
                gone = self._offsets[-1] + (last - self._starts[-1]) if self._starts else 0.0
                self._starts.append(entry.time)
                self._offsets.append(gone)
            last = max(last, entry.time)
        self._last = last

    @property
    def end_seconds(self) -> float:
        """The last time of the run in the journal."""
        return self.seconds(self._last) if self._starts else 0.0

    def seconds(self, unix: float) -> float:
        """Seconds of the run at a Unix time; 0 before its start."""
        session = bisect_right(self._starts, unix) - 1
        if session < 0:
            return 0.0
        # A killed supervisor's last moments are not in the journal: its times must not run into the next session.
        end = self._offsets[session + 1] if session + 1 < len(self._offsets) else math.inf
        return min(self._offsets[session] + (unix - self._starts[session]), end)
