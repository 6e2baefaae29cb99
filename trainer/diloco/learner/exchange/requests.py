"""Which outer gradients the syncer has requested, when each may be answered, and from which copy.

Most requests arrive in the middle of a step. Waiting for the end of the step would delay the round by a step, which is
longer than the grace window. So after every step the inner loop stages copies of the fragments that will be requested
next (they come in a fixed order), and a request for one of them is answered at once, as of the last step. It stages as
many copies as fragments were requested in one of the latest steps, and one more: a learner whose steps take as long as
five of the others' gets five requests in one. This is the part of the paper's copy of the model in host memory that
synchronization needs; it is at most the whole model, in f32.

An outer gradient is measured from the version last received. After one was sent, it may be part of a newer version that
has not been received yet; a second one measured from the same version would count the same steps twice. So a second
request waits until the newer version is here.
"""

import threading
from collections import deque
from typing import TYPE_CHECKING

from diloco.core.value import value
from diloco.learner.exchange.orders import Membership, Wakeup

if TYPE_CHECKING:
    from diloco.learner.training.capture import Capture

_RECENT_STEPS = 8


@value
class GradientRequest:
    """A request for an outer gradient."""

    membership: Membership
    fragment: int
    version: int
    """The version that its merge makes."""
    attempt: int


@value
class OuterGradient:
    """The answer to a request."""

    request: GradientRequest
    capture: "Capture"


class Requests:
    """The newest request and the newest staged copy of each fragment. Used by the loop and by the training thread."""

    def __init__(self, wakeup: Wakeup, fragments: int, ahead: int) -> None:
        """``fragments``: number in the model; ``ahead``: how many upcoming fragments are staged at least."""
        self._wakeup = wakeup
        self._fragments = fragments
        self._ahead = ahead
        self._asked_in_steps: deque[int] = deque([0], _RECENT_STEPS)
        """Fragments requested in each of the latest steps, the current one last."""
        self._lock = threading.Lock()
        self._asked: dict[int, GradientRequest] = {}
        self._sent: dict[int, int] = {}
        """fragment -> version that an outer gradient was sent for since the fragment was received."""
        self._staged: dict[int, Capture] = {}
        self._last_asked: int | None = None

    def put(self, request: GradientRequest) -> "Capture | None":
        """Add a request. Returns the staged copy to answer with; None: the inner loop will answer."""
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

    def stage(self, captures: list["Capture"]) -> None:
        """Replace all staged copies by these, taken after the step just made."""
        with self._lock:
            self._staged = {capture.fragment: capture for capture in captures}
            self._asked_in_steps.append(0)

    def not_merged(self, fragment: int, version: int) -> None:
        """Note that what was sent for ``version`` was not merged and may be sent again."""
        with self._lock:
            if self._sent.get(fragment) == version:
                del self._sent[fragment]

    def session_over(self) -> None:
        """Drop the requests. What was sent may still be merged."""
        with self._lock:
            self._asked.clear()
            self._staged.clear()

    def received(self, fragment: int) -> None:
        """Note that a newer version of the fragment was swapped in: nothing measured from it has been sent yet."""
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
        """Note that an outer gradient is on its way."""
        with self._lock:
            self._sent[request.fragment] = request.version
            self._staged.pop(request.fragment, None)

    def _may_answer(self, request: GradientRequest) -> bool:
        return request.version <= self._sent.get(request.fragment, request.version)
