"""Reads states of processes, cuts of links, and events for people from journal and tape. Pure."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from diloco.core.actions import Fence, Note, Refusal
from diloco.local.chaos.spec import FaultKind
from diloco.local.journal import Entry
from diloco.local.report.history import FaultPoint, Incident, Life, Span, Stretch
from diloco.local.report.run_clock import RunClock
from diloco.local.restarts import Verdict, how_it_ended
from diloco.local.targets import SYNCER
from diloco.tape.reader import TapeEntry


class Turn(StrEnum):
    """An event that changes the state of a process."""

    STARTED = "started"
    ENDED = "ended"
    OVER = "over"
    """It ended and is not restarted."""
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


_SIMPLE_TURNS = {"start": Turn.STARTED, "pause": Turn.PAUSED, "continue": Turn.CONTINUED}


def turns(journal: Sequence[Entry], clock: RunClock) -> dict[str, list[tuple[float, Turn]]]:
    """By process: when its state changed, as far as the supervisor knows."""
    found: dict[str, list[tuple[float, Turn]]] = defaultdict(list)
    for entry in journal:
        at = clock.seconds(entry.time)
        if entry.event == "exit":
            comes_back = entry.details.get("verdict") == Verdict.RESTART
            found[entry.process].append((at, Turn.ENDED if comes_back else Turn.OVER))
        elif entry.event in _SIMPLE_TURNS:
            found[entry.process].append((at, _SIMPLE_TURNS[entry.event]))
        elif entry.event in ("run", "end"):
            # Nothing runs between two sessions, however the supervisor of the first one ended.
            for known in found.values():
                known.append((at, Turn.OVER))
    for at, turn in list(found.get(SYNCER, ())):
        if turn in (Turn.ENDED, Turn.OVER):
            # A killed syncer cannot write on its tape that all sessions have ended.
            for process, known in found.items():
                if process != SYNCER:
                    known.append((at, Turn.LOST))
    return found


def stretches(journal: Sequence[Entry], clock: RunClock, end: float) -> tuple[tuple[str, Stretch], ...]:
    """When each region's link was cut."""
    since: dict[str, float] = {}
    found: list[tuple[str, Stretch]] = []
    for entry in journal:
        at = clock.seconds(entry.time)
        if entry.event == "cut":
            since.setdefault(entry.process, at)
        elif entry.event == "heal" and entry.process in since:
            found.append((entry.process, Stretch(since.pop(entry.process), at)))
    return (*found, *((region, Stretch(at, end)) for region, at in since.items()))


def faults(journal: Sequence[Entry], clock: RunClock) -> tuple[FaultPoint, ...]:
    """The injected faults. Those of one order are one fault."""
    found: dict[str, list[Entry]] = {}
    for number, entry in enumerate(journal):
        if entry.event in tuple(FaultKind):
            found.setdefault(str(entry.details.get("order") or number), []).append(entry)
    return tuple(
        FaultPoint(
            clock.seconds(entries[0].time),
            entries[0].event,
            tuple(entry.process for entry in entries),
            _number(entries[0].details.get("seconds")),
        )
        for entries in found.values()
    )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def incidents(journal: Sequence[Entry], clock: RunClock) -> tuple[Incident, ...]:
    """The events of a run, one line each."""
    return tuple(
        Incident(clock.seconds(entry.time), entry.process, text) for entry in journal if (text := _text(entry))
    )


def incidents_noted(entry: TapeEntry, seconds: float, named: set[str]) -> list[Incident]:
    """Events for people from the engine's notes, and from sessions that it ended to heal a learner.

    Learners in ``named`` have been left out before.
    """
    found = [
        Incident(seconds, fence.learner, f"{_FENCED[fence.refusal]}: {fence.reason}")
        for fence in entry.actions
        if isinstance(fence, Fence) and fence.refusal in _FENCED
    ]
    for note in entry.actions:
        if not isinstance(note, Note) or note.subject not in _NOTED:
            continue
        if note.subject == "MemberLeftOut":
            if note.learner in named:
                continue
            named.add(note.learner)
        found.append(Incident(seconds, note.learner or SYNCER, f"{_NOTED[note.subject]}: {note.reason}"))
    return found


_NOTED = {
    "MemberLeftOut": "left out of a merge for the first time",
    "LearnerQuarantined": "left out for a while",
    "EvaluationDoubted": "its evaluation is in doubt",
    "EvaluationConfirmed": "an evaluation that was in doubt is confirmed",
    "QuorumFollows": "the quorum follows",
}
"""Subject of a note -> text for people."""
_FENCED = {Refusal.STUCK: "found stuck", Refusal.RESET: "starts over from the global model"}


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
}
"""Event of the journal -> text for people, from its details; empty if there is nothing to tell."""


def _text(entry: Entry) -> str:
    try:
        return _TEXTS[entry.event](entry.details)
    except (KeyError, TypeError, ValueError):
        return ""  # an entry of another version


def _expected(details: Mapping[str, Any]) -> bool:
    return details["verdict"] == Verdict.DONE or bool(details["by_chaos"])


def _lasting(details: Mapping[str, Any]) -> str:
    return f" for {details['seconds']:g} s"
