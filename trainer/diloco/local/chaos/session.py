"""One session of ``diloco chaos``: gives the orders when they are due, watches the job, and ends what it has begun.

``Place`` is where the job runs: a local run (``local_place``), or a cluster (``cli.chaos_cluster``).
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from diloco.core.time_class import COMPUTING, TimeClass
from diloco.local.chaos.orders import Order
from diloco.local.chaos.spec import FaultKind
from diloco.local.report.chaos_report import (
    ChaosSample,
    Injected,
    Observed,
    Recovered,
    affected,
    recovered_at,
    what_text,
)
from diloco.spec.syncer_status import LearnerState, LearnerStatus, Phase, SyncerStatus

_TICK_SECONDS: Final = 0.2
_POLL_SECONDS: Final = 1.0
_MOST_SAMPLES: Final = 20_000
_AFTER_SECONDS: Final = 3.0
"""After a pause or cut: until then the syncer may not have noticed what it did."""


class Place(Protocol):
    """Where a job runs, and its learners can be hit."""

    def hit(self, order: Order) -> tuple[tuple[str, ...], str]:
        """Carry out an order; returns who was hit, and why not all were (empty: all were).

        Nobody and no reason: nobody was there whom the order was for. It then leaves no record. What keeps every later
        order from being carried out too is a reason here, and raised by ``over``.
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
    """Runs the orders against a place. Use once."""

    def __init__(self, place: Place, learner_ids: Sequence[str], announce: Callable[[str], None]) -> None:
        self._place = place
        self._learner_ids = learner_ids
        self._announce = announce
        self._began = time.monotonic()
        self._polled_at = -math.inf
        self._injected: list[Injected] = []
        self._before: list[tuple[int, Mapping[str, int]]] = []
        """The syncer's epoch and every learner's incarnation when each fault was injected."""
        self._latest: dict[str, LearnerStatus] = {}
        self._latest_at = -math.inf
        self._epoch = 0
        self._killed: dict[str, _Killed] = {}
        self._samples: list[ChaosSample] = []
        self._recoveries: dict[tuple[str, float], Recovered] = {}
        self._evaluations: dict[tuple[int, float], tuple[float, float]] = {}

    @property
    def injected(self) -> Sequence[Injected]:
        """What has been injected so far."""
        return self._injected

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

    def run(self, orders: Sequence[Order], *, seconds: float, settle_seconds: float) -> None:
        """Give the orders for ``seconds``, then wait at most ``settle_seconds`` until the victims have recovered.

        Pauses and cuts of the session are ended when it ends, however it does.

        Raises:
            RuntimeError, ValueError: the place's: the session cannot go on. ``injected`` and ``observed`` have what
                came before.
        """
        waiting = deque(orders)
        try:
            while self._now < seconds and not self._place.over():
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

    def _hit(self, order: Order) -> None:
        at = self._now
        # Until there is an answer: an interrupt may come first, and the report is to have the fault all the same.
        one = Injected(at, order.kind.value, order.target, order.victims, order.seconds, "the answer is not known")
        self._injected.append(one)
        self._before.append((self._epoch, {name: told.incarnation for name, told in self._latest.items()}))
        victims, refused = self._place.hit(order)
        if not victims and not refused:
            del self._injected[-1], self._before[-1]
            return
        one = Injected(at, order.kind.value, order.target, victims, order.seconds, refused)
        self._injected[-1] = one
        self._announce(what_text(one))
        if order.kind == FaultKind.KILL:
            for victim in victims:
                first = self._killed.get(victim)
                told = self._latest.get(victim)
                session = self._epoch, 0 if told is None else told.incarnation
                self._killed[victim] = _Killed(at if first is None else first.at, session)

    def _poll(self) -> None:
        now = self._now
        if now - self._polled_at < _POLL_SECONDS:
            return
        self._polled_at = now
        status = self._place.status()
        if status is None:
            return
        self._latest, self._latest_at = {told.id: told for told in status.learners}, self._now
        self._epoch = status.epoch
        offset = self._now - status.elapsed_seconds  # of this clock to that of the job
        if len(self._samples) < _MOST_SAMPLES:
            self._samples.append(sample_of(status, self._now))
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
            told = self._latest.get(name)
            if any(one.learner == name and one.merged_at > killed.at for one in self._recoveries.values()):
                del self._killed[name]
            elif told is not None and (session := (self._epoch, told.incarnation)) > killed.session:
                if killed.since != session:
                    killed.since, killed.merged_tokens = session, told.merged_tokens
                elif told.merged_tokens > killed.merged_tokens:
                    self._recoveries[name, killed.at] = Recovered(name, killed.at, self._latest_at)
                    del self._killed[name]

    def _settled(self) -> bool:
        """Whether everybody who was hit has recovered, or was not lost."""
        observed = self.observed
        return all(
            None not in recovered_at(fault, observed) or self._unharmed(fault, *before)
            for fault, before in zip(self._injected, self._before, strict=True)
        )

    def _unharmed(self, fault: Injected, epoch: int, incarnations: Mapping[str, int]) -> bool:
        """Whether a pause or cut is over and its learners train, in the sessions they had unless others ended these."""
        if fault.kind == FaultKind.KILL or self._latest_at < fault.at + fault.seconds + _AFTER_SECONDS:
            return False
        kills = (one for one in self._injected if one.kind == FaultKind.KILL and one.at > fault.at)
        ended = {victim for one in kills for victim in one.victims}
        told = [self._latest.get(name) for name in affected(fault, self._learner_ids)]
        return all(
            found is not None
            and found.state == LearnerState.TRAINING
            and (found.incarnation == incarnations.get(found.id) or self._epoch != epoch or found.id in ended)
            for found in told
        )


def sample_of(status: SyncerStatus, seconds: float) -> ChaosSample:
    """What a status says about the job's time."""
    times = status.time_seconds
    return ChaosSample(
        seconds,
        allotted_seconds=math.fsum(times.values()),
        merged_seconds=times.get(TimeClass.MERGED.value, 0.0),
        computing_seconds=math.fsum(times.get(one.value, 0.0) for one in COMPUTING),
        merged_tokens=status.merged_tokens,
    )


def is_over(status: SyncerStatus) -> bool:
    """Whether a status says that the job is over."""
    return status.phase in (Phase.COMPLETE, Phase.FAILED)
