"""Outer gradients on their way from the inner loop to the syncer.

The loop copies a fragment's outer gradient to the host between two steps and puts it here; workers encode and send it.
A newer one replaces one that no worker has taken yet, so a slow link costs at most one copy of the model on the host.
"""

import threading
from dataclasses import dataclass

from diloco.learner.mailboxes.requests import GradientRequest
from diloco.learner.training.capture import Capture


@dataclass(frozen=True, slots=True)
class OuterGradient:
    """The answer to a request."""

    request: GradientRequest
    capture: Capture


class PushQueue:
    """Holds at most one waiting and one under way for each fragment."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: dict[int, OuterGradient] = {}
        self._busy: dict[int, GradientRequest] = {}
        self._closed = False

    def offer(self, gradient: OuterGradient) -> None:
        """Have it sent."""
        with self._condition:
            self._waiting[gradient.request.fragment] = gradient
            self._condition.notify_all()

    def next(self) -> OuterGradient | None:
        """The next gradient for a worker, which calls ``done`` afterwards. Waits; None: closed."""
        with self._condition:
            while not self._closed:
                for fragment, gradient in self._waiting.items():
                    if fragment not in self._busy:
                        del self._waiting[fragment]
                        self._busy[fragment] = gradient.request
                        return gradient
                self._condition.wait()
            return None

    def done(self, gradient: OuterGradient) -> None:
        """Note that the worker has sent it or given up."""
        with self._condition:
            self._busy.pop(gradient.request.fragment, None)
            self._condition.notify_all()

    def is_superseded(self, gradient: OuterGradient) -> bool:
        """Whether a newer one of its fragment waits, so that retrying this one is useless."""
        with self._condition:
            return gradient.request.fragment in self._waiting

    def session_over(self) -> None:
        """Drop what waits: its session is over."""
        with self._condition:
            self._waiting.clear()
            self._condition.notify_all()

    def wait_until_idle(self, timeout_seconds: float) -> bool:
        """Wait until everything was sent or given up. False: it was not in that time."""
        with self._condition:
            return self._condition.wait_for(lambda: not (self._waiting or self._busy), timeout_seconds)

    def close(self) -> None:
        """End the workers. What waits is not sent."""
        with self._condition:
            self._closed = True
            self._waiting.clear()
            self._condition.notify_all()
