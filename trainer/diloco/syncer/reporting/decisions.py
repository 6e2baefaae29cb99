"""Keeps the engine's decisions that people ask for until they are written to the syncer's journal.

The page and the report of the job show them: when each learner was admitted, trained and was lost, why, and how long it
took to recover. The tape has them too, among everything else.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from diloco.core.engine.actions import Action, Admit, Fence, Finish, Note, NoteKind
from diloco.runtime.journal import Entry
from diloco.spec.status.engine import EngineStatus

JOURNAL: Final = "journal.jsonl"
"""In the syncer's directory."""
PART_BYTES: Final = 4 << 20
"""Of the journal (ours): about 25,000 decisions. There are two parts at most."""
_SYNCER: Final = "syncer"
_SHOWN: Final = (
    *(NoteKind.LEARNER_TRAINS, NoteKind.LEARNER_WAITS, NoteKind.LEARNER_LEFT),
    *(NoteKind.MEMBER_LEFT_OUT, NoteKind.LEARNER_QUARANTINED, NoteKind.LEARNER_NOT_COUNTED, NoteKind.LEARNER_COUNTED),
    *(NoteKind.EVALUATION_DOUBTED, NoteKind.EVALUATION_CONFIRMED, NoteKind.QUORUM_FOLLOWS),
)
"""The notes that the page shows. With others the journal would sooner lose what it has of learners."""


class Decisions:
    """Owned by the event loop."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """``clock`` returns Unix time."""
        self._clock = clock
        self._waiting: list[Entry] = []
        self._left_out: set[str] = set()
        self._recoveries = 0

    def serves(self, epoch: str) -> None:
        """The syncer serves, for the ``epoch``-th time."""
        self._keep("serves", _SYNCER, epoch=epoch)

    def observe(self, action: Action) -> None:
        """Keep a decision, if people ask for its kind; of a learner that merges leave out, the first."""
        match action:
            case Admit():
                self._keep("admit", action.learner, reason=action.reason)
            case Fence():
                self._keep("fence", action.learner, kind=action.refusal, reason=action.reason)
            case Note() if action.kind in _SHOWN:
                if action.kind is NoteKind.MEMBER_LEFT_OUT:
                    if action.learner in self._left_out:
                        return
                    self._left_out.add(action.learner)
                self._keep("note", action.learner or _SYNCER, kind=action.kind, reason=action.reason)
            case Finish():
                self._keep("finish", _SYNCER, reason=action.reason)

    def look(self, view: EngineStatus) -> None:
        """Keep the recoveries since the last call. Call it about once a second."""
        new = view.recoveries.count - self._recoveries
        self._recoveries = view.recoveries.count
        for one in view.recoveries.latest[-new:] if new else ():
            ago = view.elapsed_seconds - one.lost_seconds - one.seconds
            self._waiting.append(Entry("recovered", one.learner, self._clock() - ago, asdict(one)))

    def take(self) -> list[Entry]:
        """Those that were kept since the last call."""
        taken, self._waiting = self._waiting, []
        return taken

    def _keep(self, event: str, process: str, **details: str) -> None:
        self._waiting.append(Entry(event, process, self._clock(), details))
