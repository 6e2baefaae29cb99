"""Which outer gradients are asked for, and when and from what they may be answered.

A request reaches most learners in the middle of a step. If its answer waited for the end, a round would wait a step
for it, and the grace window is shorter than that. So after every step the inner loop stages copies of the fragments
that are asked for next (they come in a fixed order), and a request for one of them is answered at once, as of the last
step. There are as many copies as fragments were asked for in one of the latest steps, and one more: a learner whose
steps take as long as five of the others' is asked for five fragments in one. This is the part of the paper's copy of
the model in host memory that synchronization needs; it is at most the whole model, in f32.

An outer gradient is measured from the version last received. While one that was sent may be part of a newer version
that is not received yet, a second one measured from the same version would bring the same steps twice. So such
a request waits until the newer version is here.
"""

import threading
from collections import deque
from dataclasses import dataclass

from diloco.learner.mailboxes.holdings import Membership
from diloco.learner.mailboxes.wakeup import Wakeup
from diloco.learner.training.capture import Capture

_RECENT_STEPS = 8


@dataclass(frozen=True, slots=True)
class GradientRequest:
    """A request for an outer gradient."""

    membership: Membership
    fragment: int
    version: int
    """The version that its merge makes."""
    attempt: int


class Requests:
    """At most one request and one staged copy a fragment: the newest. Written by the link and by the inner loop."""

    def __init__(self, wakeup: Wakeup, fragments: int, ahead: int) -> None:
        """``fragments``: of the model; ``ahead``: how many fragments that come next are staged at least."""
        self._wakeup = wakeup
        self._fragments = fragments
        self._ahead = ahead
        self._asked_in_steps: deque[int] = deque([0], _RECENT_STEPS)
        """Fragments asked for in each of the latest steps, the present one last."""
        self._lock = threading.Lock()
        self._asked: dict[int, GradientRequest] = {}
        self._sent: dict[int, int] = {}
        """fragment -> version that an outer gradient was sent for since the fragment was received."""
        self._staged: dict[int, Capture] = {}
        self._last_asked: int | None = None

    def put(self, request: GradientRequest) -> Capture | None:
        """An outer gradient is asked for. Returns what to answer with; None: the inner loop will answer."""
        with self._lock:
            self._last_asked = request.fragment
            self._asked_in_steps[-1] += 1
            capture = self._staged.pop(request.fragment, None)
            if capture is not None and self._may_answer(request):
                self._sent[request.fragment] = request.version
                self._asked.pop(request.fragment, None)
                return capture
            self._asked[request.fragment] = request
        self._wakeup.notify()
        return None

    def expected(self) -> tuple[int, ...]:
        """Fragments to stage: those that come next and have nothing under way."""
        with self._lock:
            if self._last_asked is None:
                return ()
            ahead = min(max(self._ahead, max(self._asked_in_steps) + 1), self._fragments)
            following = ((self._last_asked + 1 + i) % self._fragments for i in range(ahead))
            return tuple(fragment for fragment in following if fragment not in self._sent)

    def stage(self, captures: list[Capture]) -> None:
        """These, as of the step just made, replace all that were staged before."""
        with self._lock:
            self._staged = {capture.fragment: capture for capture in captures}
            self._asked_in_steps.append(0)

    def not_merged(self, fragment: int, version: int) -> None:
        """What was sent for ``version`` is in no version: it may be sent again."""
        with self._lock:
            if self._sent.get(fragment) == version:
                del self._sent[fragment]

    def session_over(self) -> None:
        """Nobody waits for answers any more. What was sent may be merged all the same."""
        with self._lock:
            self._asked.clear()
            self._staged.clear()

    def received(self, fragment: int) -> None:
        """A newer version of the fragment was swapped in: nothing was sent that is measured from it."""
        with self._lock:
            self._sent.pop(fragment, None)
            self._staged.pop(fragment, None)

    def take(self) -> list[GradientRequest]:
        """The requests that the inner loop can answer now, oldest first."""
        if not self._asked:
            return []
        with self._lock:
            ready = [request for request in self._asked.values() if self._may_answer(request)]
            for request in ready:
                del self._asked[request.fragment]
            return ready

    def sent(self, request: GradientRequest) -> None:
        """An outer gradient is on its way."""
        with self._lock:
            self._sent[request.fragment] = request.version
            self._staged.pop(request.fragment, None)

    def _may_answer(self, request: GradientRequest) -> bool:
        return request.version <= self._sent.get(request.fragment, request.version)
