"""Messages from the learner to the syncer, handed over without waiting for the network.

The inner loop puts a message into a slot and goes on; one thread sends the contents of the slots as fast as the link
takes them. ``post`` wakes that thread once for all messages that were put: waking it in the middle of the work between
two steps would take the interpreter away from the inner loop. A slot holds the newest message of its kind (step reports
are cumulative, so the newest includes the ones before), so memory use is bounded whatever the link does.
"""

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import asdict, replace
from typing import Protocol

from diloco.core.account.time_spent import TimeSpent
from diloco.learner.mailboxes.holdings import Membership
from diloco.runtime.process.busy import Moved
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
"""Most messages that wait for the connection; beyond that, new ones wait in the slots and replace each other."""
_BACKLOG_SECONDS = 0.1
_DIGITS = 4
"""Decimal places of reported seconds. They are counted from the start, so rounding errors do not add up."""


class Sender(Protocol):
    """The part of a session that sends."""

    @property
    def backlog(self) -> int:
        """Messages that the connection has not taken yet."""

    def send(self, message: LearnerMessage) -> None:
        """Send it, or raise ``WireError``."""


class ControlOutbox:
    """The slots, and the body of the sending thread."""

    def __init__(self, alive_seconds: float, received: Callable[[], Moved] = Moved) -> None:
        """``alive_seconds``: longest silence on a session. ``received``: what pulls have received so far."""
        self._alive_seconds = alive_seconds
        self._received = received
        self._condition = threading.Condition()
        self._slots: dict[Hashable, LearnerMessage] = {}
        self._step: StepReport | None = None
        self._session: tuple[Sender, Membership] | None = None
        self._sending = False
        self._closed = False

    def session_begins(self, session: Sender, membership: Membership) -> None:
        """Send messages to this session from now on, including a step report that could not be sent before."""
        with self._condition:
            self._slots.clear()
            self._session = (session, membership)
            self._condition.notify_all()

    def session_over(self) -> None:
        """Keep the step report for the next session, and drop everything else."""
        with self._condition:
            self._session = None
            self._condition.notify_all()

    def step(self, news: StepReport) -> None:
        """Report an inner step; whose session sends it, and what pulls have received, is filled in then."""
        with self._condition:
            self._step = news

    def ready(self, membership: Membership) -> None:
        """Say that the model is loaded."""
        self._put("ready", Ready(incarnation=membership.incarnation), membership)

    def applied(self, membership: Membership, fragment: int, version: int, step: int) -> None:
        """Say that the inner loop trains on a version, swapped in after ``step``."""
        message = Applied(incarnation=membership.incarnation, fragment=fragment, version=version, step=step)
        self._put(("applied", fragment), message, membership)

    def declined(
        self, membership: Membership, fragment: int, version: int, attempt: int, *, broken: bool = False
    ) -> None:
        """Say that there is no outer gradient to send, or that it is ``broken``: not finite."""
        message = Declined(membership.incarnation, fragment, version, attempt, broken)
        self._put(("declined", fragment), message, membership)

    def evaluated(self, membership: Membership, evaluation: int, loss: float, *, exact: bool) -> None:
        """Report the result of an evaluation."""
        message = EvaluationReport(incarnation=membership.incarnation, evaluation=evaluation, loss=loss, exact=exact)
        self._put("evaluation", message, membership)

    def leave(self, membership: Membership, reason: str) -> None:
        """Say that the learner is leaving."""
        self._put("leave", Leave(incarnation=membership.incarnation, reason=reason), membership)

    def _put(self, slot: Hashable, message: LearnerMessage, membership: Membership) -> None:
        with self._condition:
            if self._session is None or self._session[1] != membership:
                return
            self._slots.pop(slot, None)  # move it to the end: the order of the slots is the order of events
            self._slots[slot] = message

    def post(self) -> None:
        """Wake the sending thread for what was put."""
        with self._condition:
            self._condition.notify_all()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything was handed to the session. False: it was not in that time, or there is no session."""
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
            report = replace(
                news,
                incarnation=membership.incarnation,
                spent=_rounded(news.spent),
                receiving_seconds=received.busy_seconds,
                received_bytes=received.bytes,
            )
            # A Leave must come after everything else, and a Ready before the first step.
            at = next((i for i, message in enumerate(messages) if isinstance(message, Leave)), len(messages))
            messages.insert(at, report)
        return messages

    def _send(self, session: Sender, messages: list[LearnerMessage]) -> None:
        try:
            for message in messages:
                session.send(message)
        except WireError:
            # The link's thread reads from the same session: it notices the failure too and opens a new one.
            with self._condition:
                if self._session is not None and self._session[0] is session:
                    self._session = None
        finally:
            with self._condition:
                self._sending = False
                self._condition.notify_all()


def _rounded(spent: TimeSpent) -> TimeSpent:
    return TimeSpent(**{kind: round(seconds, _DIGITS) for kind, seconds in asdict(spent).items()})
