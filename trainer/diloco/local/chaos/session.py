"""One session of ``diloco chaos``: injects the faults when they are due, watches the job, and ends what it has begun.

``Place`` is where the job runs: on this machine (``run_socket``), or in a cluster (``cli.chaos.cluster``).
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from diloco.local.chaos.effect import Effect, affected, what_text
from diloco.local.chaos.spec import Fault
from diloco.local.targets import SYNCER
from diloco.spec.status.engine import LearnerState, LearnerStatus
from diloco.spec.status.syncer import SyncerStatus

_TICK_SECONDS: Final = 0.2
_POLL_SECONDS: Final = 1.0
_AFTER_SECONDS: Final = 3.0
"""After a pause or cut: until then the syncer may not have noticed what it did."""


class Place(Protocol):
    """Where a job runs, and its learners can be hit."""

    def hit(self, fault: Fault) -> tuple[tuple[str, ...], str]:
        """Inject a fault; returns who was hit, and why not all were (empty: all were).

        No victim and no reason: none of those it was for exists now, and it leaves no record. What also keeps every
        later fault from being injected is a reason here, and raised by ``over``.
        """

    def status(self) -> SyncerStatus | None:
        """The syncer's status; None: it does not answer at present.

        Raises:
            RuntimeError, ValueError: of one of diloco's own classes: the job is gone, or cannot be read any more.
        """

    def over(self) -> bool:
        """Whether the job is over.

        Raises:
            RuntimeError, ValueError: of one of diloco's own classes: nothing can be hit any more.
        """

    def heal(self) -> None:
        """End every pause and cut of this session."""


@dataclass(slots=True)
class _Struck:
    """A learner or syncer that a fault has hit. Times are seconds of the session."""

    who: str
    session: tuple[int, int]
    """The syncer's epoch and the learner's incarnation, as last seen before the fault."""
    merged_tokens: float
    """Of the job, as last seen before the fault; of a learner, at the first look at its new session."""
    since: tuple[int, int] | None = None
    """The new session."""
    back_at: float | None = None
    """When its work was merged again; None: that has not been seen."""
    unharmed: bool = False
    """A pause or cut is over, and has ended no session."""

    def look(self, fault: Fault, status: SyncerStatus, learner: LearnerStatus | None, now: float) -> None:
        """Take a status that came ``now``; ``learner``: this one's part of it, None for the syncer.

        The syncer states recoveries exactly, but none of a learner that was lost before the syncer itself started.
        """
        session = status.epoch, 0 if learner is None else learner.incarnation
        merged = status.merged_tokens if learner is None else learner.merged_tokens
        began = now - status.elapsed_seconds  # of the job, on the session's clock
        stated = (began + one.lost_seconds + one.seconds for one in status.recoveries.latest if one.learner == self.who)
        if session <= self.session:
            trains = learner is None or learner.state == LearnerState.TRAINING
            self.unharmed = bool(fault.seconds) and trains and now >= fault.at_seconds + fault.seconds + _AFTER_SECONDS
        elif (at := next((at for at in stated if at > fault.at_seconds), None)) is not None:
            self.back_at = at
        elif learner is not None and self.since != session:
            self.since, self.merged_tokens = session, merged
        elif merged > self.merged_tokens:
            self.back_at = now


class Session:
    """Injects the faults in a place. Use once."""

    def __init__(self, place: Place, learner_ids: Sequence[str], announce: Callable[[str], None]) -> None:
        self._place = place
        self._learner_ids = learner_ids
        self._announce = announce
        self._began = time.monotonic()
        self._polled_at = -_POLL_SECONDS
        self._injected: list[tuple[Fault, list[_Struck]]] = []
        self._latest: SyncerStatus | None = None
        self._learners: dict[str, LearnerStatus] = {}

    @property
    def effects(self) -> list[Effect]:
        """What was injected so far, and what it did."""
        return [Effect.of(fault, [one.back_at for one in struck]) for fault, struck in self._injected]

    def run(self, faults: Sequence[Fault], *, seconds: float, settle_seconds: float) -> None:
        """Inject the faults for ``seconds``, then wait at most ``settle_seconds`` until the victims have recovered.

        Pauses and cuts of the session are ended when it ends, however it does.

        Raises:
            RuntimeError, ValueError: the place's: the session cannot go on. ``effects`` has what came before.
        """
        waiting = deque(faults)
        try:
            # A process that was kept from running is late with its faults; it leaves none out.
            while (self._now < seconds or (waiting and waiting[0].at_seconds < seconds)) and not self._place.over():
                self._poll()
                while waiting and waiting[0].at_seconds <= self._now and not self._place.over():
                    self._hit(waiting.popleft())
                time.sleep(_TICK_SECONDS)
        finally:
            self._place.heal()
        if self._place.over():
            left = f"; {len(waiting)} fault(s) were not injected" if waiting else ""
            self._announce(f"the job has ended, or its run was stopped{left}")
            return
        end = self._now + settle_seconds
        while self._now < end and not self._place.over() and not self._settled():
            self._poll()
            time.sleep(_TICK_SECONDS)

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    def _hit(self, planned: Fault) -> None:
        fault = replace(planned, at_seconds=self._now)
        # Until there is an answer: an interrupt may come first, and the report is to have the fault all the same.
        self._injected.append((replace(fault, refused="the answer is not known"), self._struck(fault)))
        victims, refused = self._place.hit(planned)
        del self._injected[-1]
        if not victims and not refused:
            return
        fault = replace(fault, victims=victims, refused=refused)
        self._injected.append((fault, self._struck(fault)))
        self._announce(what_text(fault))

    def _struck(self, fault: Fault) -> list[_Struck]:
        epoch, merged = (0, 0.0) if self._latest is None else (self._latest.epoch, self._latest.merged_tokens)

        def incarnation(who: str) -> int:
            return self._learners[who].incarnation if who in self._learners else 0

        return [_Struck(who, (epoch, incarnation(who)), merged) for who in affected(fault, self._learner_ids)]

    def _poll(self) -> None:
        now = self._now
        if now - self._polled_at < _POLL_SECONDS:
            return
        self._polled_at = now
        status = self._place.status()
        if status is None:
            return
        self._latest, self._learners = status, {one.id: one for one in status.learners}
        for fault, struck in self._injected:
            for one in struck:
                watched = one.back_at is None and not one.unharmed
                if watched and (one.who == SYNCER or one.who in self._learners):
                    one.look(fault, status, self._learners.get(one.who), self._now)

    def _settled(self) -> bool:
        """Whether every victim has recovered, or was not lost."""
        return all(one.back_at is not None or one.unharmed for _, struck in self._injected for one in struck)
