"""Writes a job's curves to its trackers, each in a thread of its own.

The source is the file of curves, which the syncer writes anyway. So a tracker that is slow, or away for a day, holds
nothing up and costs no memory, and gets everything once it can. How far each one is, is asked of those that know it;
for the others it stands in a file beside the curves. One that fails is opened anew and gets what it lacks.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ValidationError

from diloco.runtime.files import UnusableFileError, read_json, write_atomically
from diloco.runtime.process.exits import end_without_waiting
from diloco.spec.status.syncer import TrackerStatus
from diloco.spec.tracking import Tracker
from diloco.syncer.tracking.curve_reader import CurveReader, points
from diloco.syncer.tracking.trackers import OpenTracker, TrackedRun, opened

_log = logging.getLogger(__name__)

_POLL_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 30.0
_STOPPING_SECONDS: Final = 2.0
"""How long a process that is stopped waits for them; the next one goes on (ours)."""
_ENDING_SECONDS: Final = 30.0
"""How long a job that is over waits for trackers that are behind (ours)."""
_LONGEST_PROBLEM: Final = 300


class _Place(BaseModel):
    """How far a tracker is: the file's content."""

    step: int


class Tracking:
    """All trackers of a job."""

    def __init__(
        self,
        trackers: tuple[Tracker, ...],
        run: TrackedRun,
        curves: Path,
        open_tracker: Callable[[Tracker, TrackedRun, int], OpenTracker] = opened,
    ) -> None:
        self._followers = [_Follower(one, run, curves, open_tracker) for one in trackers]

    def start(self) -> None:
        """Begin to follow the curves."""
        for one in self._followers:
            one.start()

    def status(self) -> tuple[TrackerStatus, ...]:
        """How far each one is."""
        return tuple(one.status() for one in self._followers)

    def close(self, *, over: bool) -> None:
        """Write what is there, and end; ``over``: the job is. A tracker that hangs is left behind.

        What it lacks then, the next process writes; if the job is over, it stays in the file of curves.
        """
        for one in self._followers:
            one.end(over=over)
        deadline = time.monotonic() + (_ENDING_SECONDS if over else _STOPPING_SECONDS)
        ended = [one.join(max(0.0, deadline - time.monotonic())) for one in self._followers]
        if not all(ended):
            end_without_waiting()  # wandb waits for its own process when this one ends


class _Follower:
    """One tracker's thread. What its package raises is told, and tried again."""

    def __init__(
        self,
        tracker: Tracker,
        run: TrackedRun,
        curves: Path,
        open_tracker: Callable[[Tracker, TrackedRun, int], OpenTracker],
    ) -> None:
        self._name, self._tracker, self._run, self._open_tracker = tracker.name, tracker, run, open_tracker
        self._curves, self._reader = curves, CurveReader(curves)
        self._place = curves.parent / f"tracker-{tracker.name}.json"
        self._waiting: list[tuple[int, float, Mapping[str, float]]] = []
        self._step, self._problem = -1, ""
        self._open: OpenTracker | None = None
        self._stop, self._over = threading.Event(), False
        self._thread = threading.Thread(target=self._follow, name=f"tracker-{tracker.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def status(self) -> TrackerStatus:
        return TrackerStatus(name=self._name, tokens=max(self._step, 0), problem=self._problem)

    def end(self, *, over: bool) -> None:
        self._over = over
        self._stop.set()

    def join(self, seconds: float) -> bool:
        """Whether it has ended within that time."""
        if not self._thread.ident:  # never started
            return True
        self._thread.join(seconds)
        if self._waiting:
            _log.warning("%s: lacks the last %d rows of the curves", self._name, len(self._waiting))
        return not self._thread.is_alive()

    def _follow(self) -> None:
        wait = 0.0
        while True:
            stopped = self._stop.wait(wait)
            try:
                self._write()
                wait = _POLL_SECONDS
                self._told("")
            except Exception as error:  # noqa: BLE001 - of packages that are not ours
                wait = _RETRY_SECONDS
                self._told(f"{type(error).__name__}: {error}".partition("\n")[0][:_LONGEST_PROBLEM])
                self._close(over=False)  # what has failed once may fail for ever
            if stopped:
                break
        self._close(over=self._over)

    def _close(self, *, over: bool) -> None:
        closed, self._open = self._open, None
        if closed is not None:
            with suppress(Exception):  # told already, or nothing that can be lost
                closed.close(over=over)

    def _write(self) -> None:
        if self._open is None:
            self._reader, self._waiting = CurveReader(self._curves), []
        self._waiting += [(int(row.merged_tokens), row.unix_seconds, dict(points(row))) for row in self._reader.rows()]
        if not self._waiting:
            return
        if self._open is None:
            place = self._read_place()
            opened = self._open_tracker(self._tracker, self._run, place)
            self._step = place if opened.last is None else opened.last
            self._open = opened
        while self._waiting:
            step, at, values = self._waiting[0]
            if step > self._step:  # a restarted syncer merges again what came after its checkpoint
                self._open.log(step, at, values)
                self._step = step
            del self._waiting[0]
        self._open.flush()
        write_atomically(self._place, _Place(step=self._step).model_dump_json() + "\n")

    def _read_place(self) -> int:
        with suppress(UnusableFileError, ValidationError):
            return _Place.model_validate(read_json(self._place, limit_bytes=1 << 12)).step
        return -1

    def _told(self, problem: str) -> None:
        if problem and not self._problem:
            _log.warning("%s: takes no curves (%s); trying again, training goes on", self._name, problem)
        elif self._problem and not problem:
            _log.info("%s: takes curves again", self._name)
        self._problem = problem
