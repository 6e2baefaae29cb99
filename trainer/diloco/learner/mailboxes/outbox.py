"""What the learner says on its session, handed over without ever waiting.

The inner loop puts a message into a slot and goes on; one thread sends what the slots hold, as fast as the link takes
it. The thread is woken once for all that was put, by ``post``: woken in the middle of what the loop does between two
steps it would take the interpreter from it. A slot holds the newest message of its kind (steps are cumulative, so the
newest report says all that the ones before said), so what waits is bounded whatever the link does.
"""

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from typing import Protocol

from diloco.core.spent import NOTHING_TOLD, TimeSpent
from diloco.learner.mailboxes.holdings import Membership
from diloco.runtime.busy import Moved
from diloco.wire.errors import WireError
from diloco.wire.messages import (
    Alive,
    Applied,
    Declined,
    EvaluationReport,
    LearnerMessage,
    Leave,
    Ready,
    StepReport,
)

_BACKLOG = 16
"""Messages handed to a session and not taken by its connection: beyond, what comes waits in the slots and coalesces."""
_BACKLOG_SECONDS = 0.1
_DIGITS = 4
"""Of the seconds that are told: they are counted from the start, so what is rounded off does not add up."""


class Sender(Protocol):
    """The part of a session that sends."""

    @property
    def backlog(self) -> int:
        """Messages that the connection has not taken yet."""

    def send(self, message: LearnerMessage) -> None:
        """Send it, or raise ``WireError``."""


@dataclass(frozen=True, slots=True)
class StepNews:
    """A finished inner step."""

    step: int
    """Steps of this learner's life."""
    tokens: int
    """Tokens of this learner's life."""
    step_seconds: float
    blocked_seconds: float
    """Since the step before."""
    loss: float
    data_position: int
    spent: TimeSpent = NOTHING_TOLD
    """Where the time of this process went so far."""


class ControlOutbox:
    """The slots, and the thread's work."""

    def __init__(self, alive_seconds: float, received: Callable[[], Moved] = Moved) -> None:
        """``alive_seconds``: longest silence on a session. ``received``: what pulls have brought so far."""
        self._alive_seconds = alive_seconds
        self._received = received
        self._condition = threading.Condition()
        self._slots: dict[Hashable, LearnerMessage] = {}
        self._step: StepNews | None = None
        self._blocked_seconds = 0.0
        self._session: tuple[Sender, Membership] | None = None
        self._sending = False
        self._closed = False

    def session_begins(self, session: Sender, membership: Membership) -> None:
        """From now on messages go to this session. A step report that could not be sent before still will be."""
        with self._condition:
            self._slots.clear()
            self._session = (session, membership)
            self._condition.notify_all()

    def session_over(self) -> None:
        """Messages wait for the next session; all but the step report are forgotten."""
        with self._condition:
            self._session = None
            self._condition.notify_all()

    def step(self, news: StepNews) -> None:
        """Report an inner step."""
        with self._condition:
            self._step = news
            self._blocked_seconds += news.blocked_seconds

    def ready(self, membership: Membership) -> None:
        """Say that the model is loaded."""
        self._put("ready", Ready(incarnation=membership.incarnation), membership)

    def applied(self, membership: Membership, fragment: int, version: int, step: int) -> None:
        """Say that the inner loop trains on a version, swapped in after ``step``."""
        message = Applied(incarnation=membership.incarnation, fragment=fragment, version=version, step=step)
        self._put(("applied", fragment), message, membership)

    def declined(self, membership: Membership, fragment: int, version: int, attempt: int) -> None:
        """Say that there is nothing to bring."""
        message = Declined(incarnation=membership.incarnation, fragment=fragment, version=version, attempt=attempt)
        self._put(("declined", fragment), message, membership)

    def evaluated(self, membership: Membership, evaluation: int, loss: float, *, exact: bool) -> None:
        """Hand in an evaluation."""
        message = EvaluationReport(incarnation=membership.incarnation, evaluation=evaluation, loss=loss, exact=exact)
        self._put("evaluation", message, membership)

    def leave(self, membership: Membership, reason: str) -> None:
        """Say good-bye."""
        self._put("leave", Leave(incarnation=membership.incarnation, reason=reason), membership)

    def _put(self, slot: Hashable, message: LearnerMessage, membership: Membership) -> None:
        with self._condition:
            if self._session is None or self._session[1] != membership:
                return
            self._slots.pop(slot, None)  # the newest goes to the end: order between slots is the order of events
            self._slots[slot] = message

    def post(self) -> None:
        """Have what was put sent."""
        with self._condition:
            self._condition.notify_all()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything was handed to the session; False: it was not in that time, or there is no session."""
        with self._condition:
            self._condition.notify_all()
            self._condition.wait_for(
                lambda: self._session is None or not (self._slots or self._step or self._sending), timeout_seconds
            )
            return self._session is not None and not (self._slots or self._step or self._sending)

    def close(self) -> None:
        """End ``run``."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def run(self) -> None:
        """Send until closed. The body of one thread."""
        quiet_since = time.monotonic()
        while True:
            with self._condition:
                self._condition.wait_for(
                    lambda: self._closed or (self._session is not None and bool(self._slots or self._step)),
                    max(0.0, quiet_since + self._alive_seconds - time.monotonic()),
                )
                if self._closed:
                    return
                if self._session is not None and self._session[0].backlog > _BACKLOG:
                    self._condition.wait_for(lambda: self._closed, _BACKLOG_SECONDS)
                    continue
                session = self._session
                messages = [] if session is None else self._drain(session[1])
                self._sending = session is not None
            if session is not None:
                self._send(session[0], messages or [Alive(incarnation=session[1].incarnation)])
            quiet_since = time.monotonic()

    def _drain(self, membership: Membership) -> list[LearnerMessage]:
        messages = list(self._slots.values())
        self._slots.clear()
        news, self._step = self._step, None
        if news is not None:
            received = self._received()
            report = StepReport(
                incarnation=membership.incarnation,
                step=news.step,
                tokens=news.tokens,
                step_seconds=news.step_seconds,
                blocked_seconds=self._blocked_seconds,
                loss=news.loss,
                data_position=news.data_position,
                receiving_seconds=received.busy_seconds,
                received_bytes=received.bytes,
                **_told(news.spent),
            )
            self._blocked_seconds = 0.0
            # Before a Leave nothing must be missing, and a Ready must come before the first step.
            at = next((i for i, message in enumerate(messages) if isinstance(message, Leave)), len(messages))
            messages.insert(at, report)
        return messages

    def _send(self, session: Sender, messages: list[LearnerMessage]) -> None:
        try:
            for message in messages:
                session.send(message)
        except WireError:
            # The link's thread, which reads from the same session, finds it broken too and makes a new one.
            with self._condition:
                if self._session is not None and self._session[0] is session:
                    self._session = None
        finally:
            with self._condition:
                self._sending = False
                self._condition.notify_all()


def _told(spent: TimeSpent) -> dict[str, float]:
    """The fields of a step report."""
    return {f"{kind}_seconds": round(seconds, _DIGITS) for kind, seconds in asdict(spent).items()}
