"""The learner's session with the syncer: joins, receives messages, and reconnects when the connection breaks.

One thread reads the session and only puts what it receives into the mailboxes, so that it never blocks for long.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from diloco.core.dealing.pieces import Piece
from diloco.core.engine.actions import Refusal
from diloco.learner.checkpoint import is_other_training
from diloco.learner.link.transfers import reconnecting
from diloco.learner.mailboxes.control_outbox import ControlOutbox, Sender
from diloco.learner.mailboxes.hand import Hand
from diloco.learner.mailboxes.holdings import Holdings, Membership
from diloco.learner.mailboxes.orders import Ending, EndKind, EvaluationOrder, Orders
from diloco.learner.mailboxes.pull_queue import PullOrder, PullQueue
from diloco.learner.mailboxes.push_queue import OuterGradient, PushQueue
from diloco.learner.mailboxes.requests import GradientRequest, Requests
from diloco.learner.mailboxes.residuals import Residuals
from diloco.runtime.backoff import Retries
from diloco.runtime.reminders import Reminder
from diloco.wire.errors import InvalidMessageError, UnavailableError, WireError
from diloco.wire.messages import (
    Dealt,
    EvaluationWanted,
    Finished,
    FragmentReady,
    FragmentWanted,
    Join,
    Leave,
    Progress,
    Refused,
    SyncerMessage,
    Welcome,
)

_log = logging.getLogger(__name__)

_END_KINDS = {Refusal.FINISHED.value: EndKind.FINISHED, Refusal.STUCK.value: EndKind.STUCK}
"""How the process ends on a refusal, other than as refused."""


class SessionLike(Sender, Protocol):
    """The wire client's session."""

    def __iter__(self) -> Iterator[SyncerMessage]:
        """The syncer's messages, until the session ends or ``WireError`` is raised."""

    def close(self) -> None:
        """End it; an iteration in another thread returns."""


@dataclass(frozen=True)
class Mailboxes:
    """Where the link puts what it receives."""

    orders: Orders
    requests: Requests
    pull_queue: PullQueue
    push_queue: PushQueue
    control: ControlOutbox
    holdings: Holdings
    feedback: Residuals | None
    hand: Hand = field(default_factory=Hand)

    def session_over(self) -> None:
        """Drop what the ended session had asked for."""
        self.control.session_over()
        self.requests.session_over()
        self.pull_queue.session_over()
        self.push_queue.session_over()
        self.orders.session_over()


@dataclass(frozen=True, slots=True)
class Position:
    """How far the learner is, for a Join and from a Welcome."""

    steps: int
    data_position: int
    training: str = ""
    """Id of the training that these are from, as long as it is not compared with the syncer's; otherwise empty."""


class Link:
    """Keeps a session open. ``run`` is the body of one thread."""

    def __init__(
        self,
        who: Join,
        open_session: Callable[[Join], SessionLike],
        mailboxes: Mailboxes,
        position: Callable[[], Position],
        uniform: Callable[[], float],
    ) -> None:
        """``who``: what every Join says alike; ``position`` is called before each; ``uniform``: random in [0, 1)."""
        self._who = who
        self._open_session = open_session
        self._boxes = mailboxes
        self._position = position
        self._retries = Retries(reconnecting(uniform))
        self._reminder = Reminder()
        self.why_unreachable: Callable[[], str | None] = lambda: None
        """Finds out what stands in the way of a connection; may block for some seconds. None: nothing is found."""
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._session: SessionLike | None = None
        self._membership: Membership | None = None
        self._lost_at: float | None = None
        self.welcome_position: Position | None = None
        """The position that the syncer has recorded for this learner, from the latest Welcome."""
        self.training = ""
        """Id of the training, as the latest Welcome says; empty: it said none."""
        self.sessions = 0
        """Number of sessions that the syncer has accepted."""

    def current(self) -> Membership | None:
        """The current admission; None: there is no session."""
        return self._membership

    def stop_rejoining(self) -> None:
        """Do not join again once the current session ends; the thread then ends too."""
        self._closed.set()

    def close(self) -> None:
        """End the session and the thread."""
        self.stop_rejoining()
        with self._lock:
            session = self._session
        if session is not None:
            session.close()

    def goes_on(self, open_session: Callable[[Join], SessionLike]) -> bool:
        """Whether a job that was over goes on, as with a larger budget. Asks by joining.

        If it is admitted it leaves at once, so that the next process of this learner counts as no restart.
        """
        try:
            with contextlib.closing(open_session(self._join())) as session:
                for message in session:
                    if isinstance(message, Welcome):
                        session.send(Leave(message.incarnation, "the job goes on; the next process trains"))
                        return True
                    if isinstance(message, Refused):
                        return message.refusal != Refusal.FINISHED
        except WireError as error:
            _log.debug("cannot ask whether the job goes on: %s", error)
        return False

    def run(self) -> None:
        """Keep a session until closed or ended by the syncer."""
        while not self._closed.is_set():
            reason = self._one_session()
            if reason is None or self._closed.is_set():
                return
            self._closed.wait(self._retries.next_seconds())

    def _one_session(self) -> str | None:
        """Join and read messages. Returns why to join again; None: do not."""
        try:
            session = self._open_session(self._join())
        except WireError as error:
            return self._broken(error)
        with self._lock:
            self._session = session
        try:
            if self._closed.is_set():  # closed while the session was being opened
                return None
            for message in session:
                again = self._handle(session, message)
                if again is not None:
                    return again or None
            return self._lost("the syncer ended the session")
        except WireError as error:
            return self._broken(error)
        finally:
            self._membership = None
            with self._lock:
                self._session = None
            self._boxes.session_over()
            session.close()

    def _join(self) -> Join:
        position = self._position()
        epoch, versions = self._boxes.holdings.to_join_with()
        return replace(
            self._who,
            epoch=epoch,
            versions=versions,
            steps=position.steps,
            data_position=position.data_position,
            training=position.training,
            dealt=tuple(number for piece in self._boxes.hand.claims() for number in piece),
        )

    def _broken(self, error: WireError) -> str | None:
        # Refused at the first Join: trying again would give the same answer. After an admission, a new session helps.
        if self._membership is None and not error.retryable and not self._closed.is_set():
            self._boxes.orders.end(Ending(EndKind.REFUSED, str(error)))
            return None
        # Without an admission it may be that no connection comes about; gRPC's own text says little about why.
        never_connected = self._membership is None and isinstance(error, UnavailableError)
        return self._lost(str(error), look_closer=never_connected)

    def _lost(self, reason: str, *, look_closer: bool = False) -> str:
        if self._closed.is_set():
            return reason
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = now
        if look_closer and self._reminder.may_speak(now):
            reason = self.why_unreachable() or reason
        if self._reminder.due(reason, now):
            verb = "lost the syncer" if self.sessions else "cannot reach the syncer yet"
            _log.warning("%s (%s); retrying", verb, reason)
        else:
            _log.debug("still no syncer: %s", reason)
        return reason

    def _handle(self, session: SessionLike, message: SyncerMessage) -> str | None:  # noqa: C901  # a table of messages
        """Act on a message. None: continue; a text: join again; empty: end."""
        boxes = self._boxes
        membership = self._membership
        match message:
            case Welcome():
                self._welcomed(session, message)
            case Refused():
                return self._refused(message)
            case Finished():
                self._acknowledge_end(session)
                boxes.orders.end(Ending(EndKind.FINISHED, message.reason))
                return ""
            case Progress():
                boxes.orders.progressed(message)
            case _ if membership is None:
                return self._lost(f"{type(message).__name__} arrived before Welcome")
            case Dealt(first, start, length):
                boxes.hand.put(Piece(first, start, length))
            case FragmentWanted():
                self._check_fragment(message.fragment)
                self._asked(GradientRequest(membership, message.fragment, message.version, message.attempt))
            case FragmentReady():
                self._check_fragment(message.fragment)
                self._fragment_ready(membership, message)
            case EvaluationWanted():
                self._boxes.orders.evaluate(EvaluationOrder(membership, message))
                for fragment, version in enumerate(message.versions if message.final else ()):
                    self._want(membership, fragment, version)
        return None

    def _asked(self, request: GradientRequest) -> None:
        capture = self._boxes.requests.put(request)
        if capture is not None:
            self._boxes.push_queue.offer(OuterGradient(request, capture))

    def _acknowledge_end(self, session: SessionLike) -> None:
        """Acknowledge that the job is over, so that the syncer does not take the closed connection for a failure."""
        membership = self._membership
        if membership is not None:
            with contextlib.suppress(WireError):  # the syncer may have closed it already
                session.send(Leave(membership.incarnation, "the job is over"))

    def _check_fragment(self, fragment: int) -> None:
        fragments = len(self._boxes.holdings.versions())
        if fragment >= fragments:
            raise InvalidMessageError(f"the syncer speaks of fragment {fragment}; there are {fragments}")

    def _welcomed(self, session: SessionLike, welcome: Welcome) -> None:
        boxes = self._boxes
        theirs, ours = len(welcome.versions), len(boxes.holdings.versions())
        if theirs != ours:
            raise InvalidMessageError(f"the syncer's model has {theirs} fragments, this learner's has {ours}")
        for fragment in welcome.load:
            self._check_fragment(fragment)
        membership = Membership(welcome.epoch, welcome.incarnation)
        self.sessions += 1
        before, self.training = self.training, welcome.training
        self.welcome_position = Position(welcome.steps, welcome.data_position)
        boxes.orders.progressed(welcome.progress)
        self._membership = membership
        boxes.control.session_begins(session, membership)
        boxes.pull_queue.session_begins(membership)
        if boxes.feedback is not None:
            boxes.feedback.session_begins(membership.epoch, welcome.versions, welcome.counted_in)
        if boxes.holdings.admitted(membership, welcome.load):
            boxes.control.ready(membership)
            boxes.control.post()
        # Only now, as the inner loop then waits for what is to be loaded.
        if welcome.reset:
            boxes.orders.start_over("the syncer says that this learner has diverged")
        elif is_other_training(before, welcome.training):
            boxes.orders.start_over("the syncer has begun another training")
        away = "" if self._lost_at is None else f" after {time.monotonic() - self._lost_at:.1f} s"
        verb = "joined" if self.sessions == 1 else "rejoined"
        _log.info(
            "%s%s as incarnation %d of epoch %s; %d of %d fragments to load",
            verb,
            away,
            welcome.incarnation,
            welcome.epoch,
            len(welcome.load),
            len(welcome.versions),
        )
        self._lost_at = None
        self._reminder.over()
        self._retries.worked()
        # Include fragments that are only a little behind: their notices went to the previous session.
        for fragment in (*welcome.load, *range(len(welcome.versions))):
            self._want(membership, fragment, welcome.versions[fragment])

    def _want(self, membership: Membership, fragment: int, version: int) -> None:
        if self._boxes.holdings.is_news(membership.epoch, fragment, version):
            load = self._boxes.holdings.awaits(fragment)
            self._boxes.pull_queue.want(PullOrder(membership, fragment, version, load=load))

    def _fragment_ready(self, membership: Membership, notice: FragmentReady) -> None:
        boxes = self._boxes
        if not notice.merged:
            boxes.requests.not_merged(notice.fragment, notice.version)
        if boxes.feedback is not None:
            boxes.feedback.outcome(notice.fragment, notice.version, merged=notice.merged)
        boxes.orders.progressed(notice.progress)
        self._want(membership, notice.fragment, notice.version)

    def _refused(self, refused: Refused) -> str:
        if refused.refusal == Refusal.LEASE_EXPIRED:
            return self._lost(f"lease expired: {refused.reason}")
        if refused.refusal == Refusal.RESET:
            return self._lost(f"to start over: {refused.reason}")
        if refused.refusal == Refusal.UNKNOWN_LEARNER:
            # The learner's own manifest has it: the syncer, which reads another copy, has not seen a new pool yet.
            return self._lost(f"it waits until this learner is in the syncer's manifest: {refused.reason}")
        kind = _END_KINDS.get(refused.refusal, EndKind.REFUSED)
        self._boxes.orders.end(Ending(kind, f"{refused.refusal}: {refused.reason}"))
        return ""
