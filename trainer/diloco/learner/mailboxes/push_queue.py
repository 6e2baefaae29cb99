"""Outer gradients on their way from the inner loop to the syncer.

The loop copies a fragment's outer gradient to the host between two steps and puts it here; workers encode and send it.
A newer one replaces one that no worker has taken yet, so a slow link costs at most one copy of the model on the host.
"""

import threading
from dataclasses import dataclass, field

from diloco.learner.mailboxes.requests import GradientRequest
from diloco.learner.training.capture import Capture
from diloco.wire.client.transfer_handle import TransferHandle


@dataclass(frozen=True, slots=True)
class OuterGradient:
    """The answer to a request."""

    request: GradientRequest
    capture: Capture
    handle: TransferHandle = field(default_factory=TransferHandle, compare=False)
    """With which its push is withdrawn."""


class PushQueue:
    """Holds at most one waiting for each fragment, and one under way of a session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._idle = threading.Condition(self._lock)
        self._waiting: dict[int, OuterGradient] = {}
        self._busy: list[OuterGradient] = []
        self._closed = False

    def offer(self, gradient: OuterGradient) -> None:
        """Have it sent."""
        with self._lock:
            self._waiting[gradient.request.fragment] = gradient
            self._work.notify()

    def next(self) -> OuterGradient | None:
        """The next gradient for a worker, which calls ``done`` afterwards. Waits; None: closed."""
        with self._lock:
            while not self._closed:
                for fragment, gradient in self._waiting.items():
                    places = ((busy.request.membership, busy.request.fragment) for busy in self._busy)
                    if (gradient.request.membership, fragment) not in places:
                        del self._waiting[fragment]
                        self._busy.append(gradient)
                        return gradient
                self._work.wait()
            return None

    def done(self, gradient: OuterGradient) -> None:
        """Note that the worker has sent it or given up."""
        with self._lock:
            self._busy = [busy for busy in self._busy if busy is not gradient]
            self._work.notify()  # one of the same fragment may have waited for it
            self._idle.notify_all()

    def is_superseded(self, gradient: OuterGradient) -> bool:
        """Whether a newer one of its fragment waits, so that retrying this one is useless."""
        with self._lock:
            return gradient.request.fragment in self._waiting

    def session_over(self) -> None:
        """Drop what waits, and withdraw what is under way: its session is over."""
        with self._lock:
            self._waiting.clear()
            under_way = tuple(self._busy)
            self._idle.notify_all()
        for gradient in under_way:
            gradient.handle.withdraw()

    def pending(self) -> tuple[int, ...]:
        """Fragments that wait or are under way."""
        with self._lock:
            return (*self._waiting, *(busy.request.fragment for busy in self._busy))

    def wait_until_idle(self, timeout_seconds: float) -> bool:
        """Wait until everything was sent or given up. False: it was not in that time."""
        with self._lock:
            return self._idle.wait_for(lambda: not (self._waiting or self._busy), timeout_seconds)

    def close(self) -> None:
        """End the workers. What waits is not sent."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
            self._work.notify_all()
            self._idle.notify_all()
