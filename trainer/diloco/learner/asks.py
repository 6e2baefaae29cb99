"""Which outer gradients are asked for, and when the inner loop may answer.

An outer gradient is measured from the version last received. While one that was sent may be part of a newer version
that is not received yet, a second one measured from the same version would bring the same steps twice. So such an ask
waits until the newer version is here.
"""

import threading
from dataclasses import dataclass

from diloco.learner.bell import Bell
from diloco.learner.membership import Membership


@dataclass(frozen=True, slots=True)
class Ask:
    """An ask for an outer gradient."""

    membership: Membership
    fragment: int
    version: int
    """The version that its merge makes."""
    attempt: int


class Asks:
    """At most one ask a fragment: the newest. Written by the link, answered by the inner loop."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._lock = threading.Lock()
        self._asked: dict[int, Ask] = {}
        self._sent: dict[int, int] = {}
        """fragment -> version that an outer gradient was sent for since the fragment was received."""

    def put(self, ask: Ask) -> None:
        """An outer gradient is asked for."""
        with self._lock:
            self._asked[ask.fragment] = ask
        self._bell.ring()

    def not_merged(self, fragment: int, version: int) -> None:
        """What was sent for ``version`` is in no version: it may be sent again."""
        with self._lock:
            if self._sent.get(fragment) == version:
                del self._sent[fragment]

    def session_over(self) -> None:
        """Nobody waits for answers any more. What was sent may be merged all the same."""
        with self._lock:
            self._asked.clear()

    def received(self, fragment: int) -> None:
        """A newer version of the fragment was swapped in: nothing was sent that is measured from it."""
        with self._lock:
            self._sent.pop(fragment, None)

    def take(self) -> list[Ask]:
        """The asks that can be answered now, oldest first."""
        if not self._asked:
            return []
        with self._lock:
            ready = [ask for ask in self._asked.values() if ask.version <= self._sent.get(ask.fragment, ask.version)]
            for ask in ready:
                del self._asked[ask.fragment]
            return ready

    def sent(self, ask: Ask) -> None:
        """An outer gradient is on its way."""
        with self._lock:
            self._sent[ask.fragment] = ask.version
