"""Reads times, states of processes, faults, recoveries and events for people from journals. Pure."""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter, ValidationError

from diloco.core.engine.actions import NoteKind, Refusal
from diloco.local.chaos.effect import MOST_NAMES
from diloco.local.chaos.spec import Fault, FaultKind
from diloco.local.report.history import Incident, Life, RecoveryPoint, Span, Stretch
from diloco.local.restarts import Verdict
from diloco.local.targets import SYNCER
from diloco.runtime.journal import Entry
from diloco.runtime.process.exits import how_it_ended
from diloco.spec.status.engine import RecoveryStatus
from diloco.spec.words import shortlist


class RunClock:
    """One time axis for a run: seconds under supervision.

    They count from the first start, without the gaps between an interruption and its resumption. Journals and curves
    have Unix times.
    """

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


class Turn(StrEnum):
    """An event that changes the state of a process."""

    STARTED = "started"
    ENDED = "ended"
    OVER = "over"
    TRAINS = "trains"
    """It has a session and the model; for the syncer: it serves."""
    LOST = "lost"
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
            # A notice that arrives after the process has ended belongs to the previous process.
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
    """The states of one process up to ``end``, from its turns (in any order; times in seconds of the run)."""
    states: list[Span] = []
    process = _Process()
    since = 0.0
    for at, turn in sorted(turns, key=lambda item: item[0]):
        _close(states, process, since, min(at, end))
        process.take(turn)
        since = at
    _close(states, process, since, end)
    return tuple(states)


def _close(states: list[Span], process: _Process, since: float, until: float) -> None:
    life = process.life()
    if life is None or until <= since:
        return
    if states and states[-1].life is life and states[-1].end == since:
        states[-1] = Span(states[-1].start, until, life)
    else:
        states.append(Span(since, until, life))


_SIMPLE_TURNS = {
    "start": Turn.STARTED,
    "pause": Turn.PAUSED,
    "continue": Turn.CONTINUED,
    "serves": Turn.TRAINS,
    "admit": Turn.LOST,
    "fence": Turn.LOST,
    "away": Turn.ENDED,
}
_TURNS_OF_NOTES: Mapping[str, Turn] = {
    NoteKind.LEARNER_TRAINS: Turn.TRAINS,
    NoteKind.LEARNER_WAITS: Turn.TRAINS,
    NoteKind.LEARNER_LEFT: Turn.LOST,
}


def _turn(entry: Entry) -> Turn | None:
    if entry.event == "exit":
        return Turn.ENDED if entry.details.get("verdict") == Verdict.RESTART else Turn.OVER
    if entry.event == "note":
        return _TURNS_OF_NOTES.get(str(entry.details.get("kind")))
    return _SIMPLE_TURNS.get(entry.event)


def turns(journal: Sequence[Entry], clock: RunClock) -> dict[str, list[tuple[float, Turn]]]:
    """By process: when its state changed, as far as the supervisor knows and, if its entries are there, the syncer."""
    by_process: dict[str, list[tuple[float, Turn]]] = defaultdict(list)
    over = False
    for entry in journal:
        at = clock.seconds(entry.time)
        over = entry.event == "finish" or (over and entry.event not in ("run", "serves"))
        if entry.event in ("run", "end"):
            # Nothing runs between two sessions, however the supervisor of the first one ended.
            for known in by_process.values():
                known.append((at, Turn.OVER))
        elif (found := _turn(entry)) is not None:
            by_process[entry.process].append((at, Turn.OVER if over and found is Turn.LOST else found))
    for at, turn in list(by_process.get(SYNCER, ())):
        if turn in (Turn.ENDED, Turn.OVER):
            # A killed syncer cannot write on its tape that all sessions have ended.
            for process, known in by_process.items():
                if process != SYNCER:
                    known.append((at, Turn.LOST))
    return by_process


def stretches(journal: Sequence[Entry], clock: RunClock, end: float) -> tuple[tuple[str, Stretch], ...]:
    """When each region's link was cut."""
    since: dict[str, float] = {}
    cuts: list[tuple[str, Stretch]] = []
    for entry in journal:
        at = clock.seconds(entry.time)
        if entry.event == "cut":
            since.setdefault(entry.process, at)
        elif entry.event == "heal" and entry.process in since:
            cuts.append((entry.process, Stretch(since.pop(entry.process), at)))
    return (*cuts, *((region, Stretch(at, end)) for region, at in since.items()))


def faults(journal: Sequence[Entry], clock: RunClock) -> tuple[Fault, ...]:
    """The injected faults. Entries with one ``fault_id`` are one fault."""
    by_fault: dict[str, list[Entry]] = {}
    for number, entry in enumerate(journal):
        if entry.event in _FAULTS:
            by_fault.setdefault(str(entry.details.get("fault_id") or number), []).append(entry)
    return tuple(_fault(entries, clock) for entries in by_fault.values())


_FAULTS = frozenset(map(str, FaultKind))


def _fault(entries: Sequence[Entry], clock: RunClock) -> Fault:
    first, victims = entries[0], tuple(entry.process for entry in entries)
    target = shortlist(list(victims), MOST_NAMES)
    seconds = first.details.get("seconds")
    lasting = float(seconds) if isinstance(seconds, int | float) else 0.0
    return Fault(FaultKind(first.event), target, victims, at_seconds=clock.seconds(first.time), seconds=lasting)


def processes_noted(journal: Sequence[Entry]) -> dict[str, int]:
    """By learner: its number of processes, as the supervisor has noted last."""
    runs = [entry.details.get("processes", {}) for entry in journal if entry.event == "run"]
    return runs[-1] if runs else {}


def recoveries(journal: Sequence[Entry], clock: RunClock) -> tuple[RecoveryPoint, ...]:
    """The learners that were lost and have recovered; an entry that is damaged is passed over."""
    points = []
    for entry in journal:
        if entry.event == "recovered":
            with suppress(ValidationError):
                points.append(RecoveryPoint(clock.seconds(entry.time), _RECOVERY.validate_python(entry.details)))
    return tuple(points)


_RECOVERY = TypeAdapter(RecoveryStatus)


def incidents(journal: Sequence[Entry], clock: RunClock) -> tuple[Incident, ...]:
    """The events of a run, one line each."""
    return tuple(
        Incident(clock.seconds(entry.time), entry.process, text) for entry in journal if (text := _text(entry))
    )


_NOTED = {
    NoteKind.MEMBER_LEFT_OUT: "left out of a merge for the first time",
    NoteKind.LEARNER_QUARANTINED: "left out for a while",
    NoteKind.LEARNER_NOT_COUNTED: "does not count",
    NoteKind.LEARNER_COUNTED: "counts again",
    NoteKind.EVALUATION_DOUBTED: "its evaluation is in doubt",
    NoteKind.EVALUATION_CONFIRMED: "an evaluation that was in doubt is confirmed",
    NoteKind.QUORUM_FOLLOWS: "the quorum follows",
}
"""Kind of a note -> text for people."""
_FENCED = {Refusal.STUCK: "found stuck", Refusal.RESET: "starts over from the global model"}
_TOLD: Mapping[str, str] = {str(kind): text for kind, text in (*_NOTED.items(), *_FENCED.items())}


def _decided(details: Mapping[str, Any]) -> str:
    text = _TOLD.get(details["kind"])
    return f"{text}: {details['reason']}" if text else ""


_TEXTS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "kill": lambda _: "killed with SIGKILL (injected)",
    "pause": lambda details: f"stopped with SIGSTOP{_lasting(details)} (injected)",
    "continue": lambda _: "continues",
    "cut": lambda details: f"link cut{_lasting(details)} (injected)",
    "heal": lambda _: "link is back",
    "start": lambda details: f"restarted (restart {details['restarts']})" if details.get("restarts") else "",
    "exit": lambda details: "" if _expected(details) else f"ended: {how_it_ended(details['code'])}",
    "give_up": lambda details: f"given up: {details['reason']}",
    "run": lambda details: "the run was resumed" if details.get("resumed") else "",
    "end": lambda details: f"the run was {details['ending']}" if details["ending"] != "finished" else "",
    "note": _decided,
    "fence": _decided,
    "lost": lambda details: f"lost: {details['reason']}",
}
"""Event of the journal -> text for people, from its details; empty if there is nothing to tell."""


def _text(entry: Entry) -> str:
    text = _TEXTS.get(entry.event)
    try:
        return "" if text is None else text(entry.details)
    except (KeyError, TypeError, ValueError):
        return f"entry {entry.event!r} of the supervisor's journal is damaged"


def _expected(details: Mapping[str, Any]) -> bool:
    return details["verdict"] == Verdict.DONE or bool(details["by_chaos"])


def _lasting(details: Mapping[str, Any]) -> str:
    return f" for {details['seconds']:g} s"
