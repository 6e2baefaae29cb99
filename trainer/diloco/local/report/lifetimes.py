"""From what happened to a process to the spans of its life. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from diloco.local.report.history import Life, Span


class Turn(StrEnum):
    """Something that changes what a process is doing."""

    STARTED = "started"
    ENDED = "ended"
    OVER = "over"
    """It ended and does not come back."""
    TRAINS = "trains"
    """It has a session and the model; for the syncer: it serves."""
    LOST = "lost"
    """Its session ended."""
    PAUSED = "paused"
    CONTINUED = "continued"


@dataclass(slots=True)
class _Process:
    exists: bool = False
    alive: bool = False
    trained: bool = False
    session: bool = False
    paused: bool = False

    def take(self, turn: Turn) -> None:
        if turn is Turn.STARTED:
            self.exists, self.alive, self.trained, self.session, self.paused = True, True, False, False, False
        elif turn in (Turn.ENDED, Turn.OVER):
            self.exists = self.exists and turn is Turn.ENDED
            self.alive = self.session = self.paused = False
        elif turn is Turn.TRAINS:
            # A notice that crossed the process's end is of the one before.
            self.session = self.trained = self.alive
        elif turn is Turn.LOST:
            self.session = False
        else:
            self.paused = self.alive and turn is Turn.PAUSED

    def life(self) -> Life | None:
        if not self.alive:
            return Life.DOWN if self.exists else None
        if self.paused:
            return Life.PAUSED
        if self.session:
            return Life.TRAINING
        return Life.AWAY if self.trained else Life.STARTING


def spans(turns: Iterable[tuple[float, Turn]], end: float) -> tuple[Span, ...]:
    """The life of one process up to ``end``, from its turns (in any order; times in seconds of the run)."""
    found: list[Span] = []
    process = _Process()
    since = 0.0
    for at, turn in sorted(turns, key=lambda item: item[0]):
        _close(found, process, since, min(at, end))
        process.take(turn)
        since = at
    _close(found, process, since, end)
    return tuple(found)


def _close(found: list[Span], process: _Process, since: float, until: float) -> None:
    life = process.life()
    if life is None or until <= since:
        return
    if found and found[-1].life is life and found[-1].end == since:
        found[-1] = Span(found[-1].start, until, life)
    else:
        found.append(Span(since, until, life))
