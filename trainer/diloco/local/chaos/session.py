"""One session of ``diloco chaos``: injects the faults when they are due, watches the job, and ends what it has begun.

``Place`` is where the job runs: on this machine (``run_socket``), or in a cluster (``cli.chaos.cluster``).
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from diloco.local.chaos.spec import Fault, FaultKind
from diloco.local.report.chaos_report import Observed, Recovered, affected, recovered_at, what_text
from diloco.local.report.history import Sample
from diloco.spec.status.engine import LearnerState, LearnerStatus
from diloco.spec.status.syncer import SyncerStatus

_TICK_SECONDS: Final = 0.2
_POLL_SECONDS: Final = 1.0
_MOST_SAMPLES: Final = 20_000
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
class _Killed:
    """A learner whose work since has not been seen in a merge."""

    at: float
    """Of the first kill since its work was last merged."""
    session: tuple[int, int]
    """The syncer's epoch, and the learner's incarnation, at the latest kill."""
    since: tuple[int, int] | None = None
    """The same of its new session, once it has one."""
    merged_tokens: float = 0.0
    """At the first look at that."""


class Session:
    """Injects the faults in a place. Use once."""

    def __init__(self, place: Place, learner_ids: Sequence[str], announce: Callable[[str], None]) -> None:
        self._place = place
        self._learner_ids = learner_ids
        self._announce = announce
        self._began = time.monotonic()
        self._polled_at = -math.inf
        self.injected: list[Fault] = []
        self._before: list[tuple[int, Mapping[str, int]]] = []
        """The syncer's epoch and every learner's incarnation when each fault was injected."""
        self._latest: dict[str, LearnerStatus] = {}
        self._latest_at = -math.inf
        self._epoch = 0
        self._killed: dict[str, _Killed] = {}
        self._samples: list[Sample] = []
        self._recoveries: dict[tuple[str, float], Recovered] = {}
        self._evaluations: dict[tuple[int, float], tuple[float, float]] = {}

    @property
    def observed(self) -> Observed:
        """What was seen so far."""
        return Observed(
            samples=tuple(self._samples),
            recoveries=sorted(self._recoveries.values(), key=lambda one: one.merged_at),
            evaluations=sorted(self._evaluations.values()),
            learner_ids=self._learner_ids,
            end=self._now,
        )

    def run(self, faults: Sequence[Fault], *, seconds: float, settle_seconds: float) -> None:
        """Inject the faults for ``seconds``, then wait at most ``settle_seconds`` until the victims have recovered.

        Pauses and cuts of the session are ended when it ends, however it does.

        Raises:
            RuntimeError, ValueError: the place's: the session cannot go on. ``injected`` and ``observed`` have what
                came before.
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
        self.injected.append(replace(fault, refused="the answer is not known"))
        self._before.append((self._epoch, {name: one.incarnation for name, one in self._latest.items()}))
        victims, refused = self._place.hit(planned)
        if not victims and not refused:
            del self.injected[-1], self._before[-1]
            return
        self.injected[-1] = fault = replace(fault, victims=victims, refused=refused)
        self._announce(what_text(fault))
        if fault.kind is FaultKind.KILL:
            for victim in victims:
                first, known = self._killed.get(victim), self._latest.get(victim)
                session = self._epoch, 0 if known is None else known.incarnation
                self._killed[victim] = _Killed(fault.at_seconds if first is None else first.at, session)

    def _poll(self) -> None:
        now = self._now
        if now - self._polled_at < _POLL_SECONDS:
            return
        self._polled_at = now
        status = self._place.status()
        if status is None:
            return
        self._latest, self._latest_at = {one.id: one for one in status.learners}, self._now
        self._epoch = status.epoch
        offset = self._now - status.elapsed_seconds  # of this clock to that of the job
        if len(self._samples) < _MOST_SAMPLES:
            self._samples.append(Sample.of(self._now, status.merged_tokens, status.time_seconds))
        for one in status.recoveries.latest:
            lost_at = one.lost_seconds + offset
            # A recovery is told again and again: the time of its loss identifies it, to the second.
            key = one.learner, round(one.lost_seconds, 3)
            self._recoveries.setdefault(key, Recovered(one.learner, lost_at, lost_at + one.seconds))
        self._look_for_killed()
        for evaluation in status.evaluations:
            if evaluation.loss is not None and not evaluation.doubted:
                key_of = evaluation.tokens, evaluation.seconds
                self._evaluations.setdefault(key_of, (evaluation.seconds + offset, evaluation.loss))

    def _look_for_killed(self) -> None:
        """See who is merged again.

        The syncer tells that too, but not of those that were lost before it started: it may have been killed itself.
        """
        for name, killed in list(self._killed.items()):
            learner = self._latest.get(name)
            if any(one.learner == name and one.merged_at > killed.at for one in self._recoveries.values()):
                del self._killed[name]
            elif learner is not None and (session := (self._epoch, learner.incarnation)) > killed.session:
                if killed.since != session:
                    killed.since, killed.merged_tokens = session, learner.merged_tokens
                elif learner.merged_tokens > killed.merged_tokens:
                    self._recoveries[name, killed.at] = Recovered(name, killed.at, self._latest_at)
                    del self._killed[name]

    def _settled(self) -> bool:
        """Whether every victim has recovered, or was not lost."""
        observed = self.observed
        return all(
            None not in recovered_at(fault, observed) or self._unharmed(fault, *before)
            for fault, before in zip(self.injected, self._before, strict=True)
        )

    def _unharmed(self, fault: Fault, epoch: int, incarnations: Mapping[str, int]) -> bool:
        """Whether a pause or cut is over and its learners train, in the sessions they had unless others ended these."""
        began = fault.at_seconds
        if fault.kind is FaultKind.KILL or self._latest_at < began + fault.seconds + _AFTER_SECONDS:
            return False
        kills = (one for one in self.injected if one.kind is FaultKind.KILL and one.at_seconds > began)
        ended = {victim for one in kills for victim in one.victims}
        learners = [self._latest.get(name) for name in affected(fault, self._learner_ids)]
        return all(
            one is not None
            and one.state == LearnerState.TRAINING
            and (one.incarnation == incarnations.get(one.id) or self._epoch != epoch or one.id in ended)
            for one in learners
        )
