"""Says why no learner has joined, as far as the logs of the run's processes tell it."""

import re
import time
from collections.abc import Callable
from typing import Final

from diloco.local.fleet import Fleet, Managed, ProcessState

_SOON_SECONDS: Final = 20.0
"""Start of a small job's learner, several times over (ours)."""
_AGAIN_SECONDS: Final = 60.0
_LOG_HEAD: Final = re.compile(r"\d\d:\d\d:\d\d\.\d{3} \S+ ")


class JoinWatch:
    """Looked at regularly, it announces a line after some seconds, and again if the reason changes."""

    def __init__(self, announce: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._announce, self._clock = announce, clock
        self._next_at = 0.0
        self._told = ""

    def look(self, fleet: Fleet) -> None:
        """Announce why no learner has joined, if it is time for that."""
        running = [one for one in fleet.learners.values() if one.state is ProcessState.RUNNING]
        now = self._clock()
        if not running or any(one.joined for one in running) or now < self._next_at:
            return
        if now - min(one.started_at for one in running) < _SOON_SECONDS:
            return
        self._next_at = now + _AGAIN_SECONDS
        why = "the syncer does not serve yet" if not fleet.syncer.proven else "no learner has joined yet"
        line = f"{why}; {_last(running[0] if fleet.syncer.proven else fleet.syncer)}"
        if line != self._told:
            self._told = line
            self._announce(line)


def _last(process: Managed) -> str:
    line = _LOG_HEAD.sub("", process.child.last_line(), count=1)
    return f"{process.name} logged last: {line}" if line else f"{process.name} logged nothing"
