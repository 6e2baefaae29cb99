"""What the training thread hands over for the syncer, without waiting for the network: messages and outer gradients.

The training thread puts them and goes on; the loop sends messages as fast as the connection takes them. ``post`` wakes
the loop once for all that were put: waking it in the middle of the work between two steps would take the interpreter
away from the training thread. A slot holds the newest message of its kind (step reports are cumulative, so the newest
includes the ones before), so memory use is bounded whatever the link does.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import asdict, replace
from functools import partial
from typing import Protocol

from diloco.core.account.time_spent import TimeSpent
from diloco.learner.exchange.orders import Membership
from diloco.learner.exchange.requests import OuterGradient
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

_DIGITS = 4
"""Decimal places of reported seconds. They are counted from the start, so rounding errors do not add up."""


class Sender(Protocol):
    """The part of a session that sends."""

    async def send(self, message: LearnerMessage) -> None:
        """Send it once the connection takes it, or raise ``WireError``."""


class Outbox:
    """Put into by the training thread; all else is called on the loop, which may put too."""

    def __init__(self, alive_seconds: float, received: Callable[[], Moved] = Moved) -> None:
        """``alive_seconds``: longest silence on a session. ``received``: what pulls have received so far."""
        self._alive_seconds = alive_seconds
        self._received = received
        self.wake: Callable[[], object] = lambda: None
        """Has the loop call ``deliver`` soon. Called by the training thread."""
        self.push: Callable[[OuterGradient], object] = lambda _: None
        """Takes the outer gradients, on the loop."""
        self._handed: deque[Callable[[], object]] = deque()
        self._slots: dict[Hashable, LearnerMessage] = {}
        self._step: StepReport | None = None
        self._membership: Membership | None = None
        self._sending = False
        self._changed, self._sent = asyncio.Event(), asyncio.Event()

    def step(self, news: StepReport) -> None:
        """Report an inner step; whose session sends it, and what pulls have received, is filled in then."""
        self._handed.append(partial(setattr, self, "_step", news))

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

    def answer(self, gradient: OuterGradient) -> None:
        """Have an outer gradient pushed."""
        self._handed.append(lambda: self.push(gradient))

    def post(self) -> None:
        """Wake the loop for what was put."""
        if self._handed:
            self.wake()

    def deliver(self) -> None:
        """Take what was put."""
        while self._handed:
            self._handed.popleft()()
        self._changed.set()

    def session_begins(self, membership: Membership) -> None:
        """Send under this admission from now on, beginning with a step report that could not be sent before."""
        self._slots.clear()
        self._membership = membership
        self._changed.set()

    def session_over(self) -> None:
        """Keep the step report for the next session, and drop everything else."""
        self._membership = None
        self._changed.set()
        self._sent.set()

    async def run(self, session: Sender, membership: Membership) -> None:
        """Send to a session until it is over."""
        loop = asyncio.get_running_loop()
        silent_until = loop.time() + self._alive_seconds
        while self._membership == membership:
            messages: list[LearnerMessage] = []
            try:
                async with asyncio.timeout_at(silent_until):
                    await self._changed.wait()
            except TimeoutError:
                messages = [Alive(incarnation=membership.incarnation)]
            self._changed.clear()
            if self._membership == membership:
                messages = self._drain(membership) or messages
            if messages:
                await self._send(session, messages, membership)
                silent_until = loop.time() + self._alive_seconds

    async def flush(self) -> bool:
        """Wait until everything that was put is sent. False: there is no session."""
        while self._membership is not None and (self._handed or self._slots or self._step or self._sending):
            self._sent.clear()
            await self._sent.wait()
        return self._membership is not None

    def _put(self, slot: Hashable, message: LearnerMessage, membership: Membership) -> None:
        def put() -> None:
            if self._membership == membership:
                self._slots.pop(slot, None)  # move it to the end: the order of the slots is the order of events
                self._slots[slot] = message

        self._handed.append(put)

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

    async def _send(self, session: Sender, messages: list[LearnerMessage], membership: Membership) -> None:
        self._sending = True
        try:
            for message in messages:
                await session.send(message)
        except WireError:
            # The link reads from the same session: it notices the failure too and opens a new one.
            if self._membership == membership:
                self._membership = None
        finally:
            self._sending = False
            self._sent.set()


def _rounded(spent: TimeSpent) -> TimeSpent:
    return TimeSpent(**{kind: round(seconds, _DIGITS) for kind, seconds in asdict(spent).items()})
