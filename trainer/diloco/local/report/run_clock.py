"""One time axis for a run: seconds in which it was under supervision. Pure.

They count from the first start, without the gaps between an interruption and its resumption. The journal gives Unix
times; a tape gives the Unix time of its start, and seconds since then.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

from diloco.local.journal import Entry


class RunClock:
    """Turns Unix times into seconds of the run."""

    def __init__(self, journal: Sequence[Entry]) -> None:
        """Read the sessions off a journal: each begins with a ``run`` entry and lasts to the last before the next."""
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
        """The last moment of the run that the journal knows."""
        return self.seconds(self._last) if self._starts else 0.0

    def seconds(self, unix: float) -> float:
        """Seconds of the run at a Unix time; 0 before its start."""
        session = bisect_right(self._starts, unix) - 1
        if session < 0:
            return 0.0
        # A supervisor that was killed leaves its last moments out of the journal: they must not pass what follows.
        end = self._offsets[session + 1] if session + 1 < len(self._offsets) else math.inf
        return min(self._offsets[session] + (unix - self._starts[session]), end)
