"""Merged fragments on their way from the syncer to the inner loop.

Workers pull them into buffers of their own; the inner loop swaps them in between two steps. A newer version replaces
one that the loop has not taken yet, so the loop never sees a fragment that is not whole, and what waits is at most
one copy of the model on the host, however slow the loop or fast the syncer.
"""

import threading
from dataclasses import dataclass

from torch import Tensor

from diloco.learner.bell import Bell
from diloco.learner.membership import Membership


@dataclass(frozen=True, slots=True)
class Wish:
    """A fragment to pull."""

    membership: Membership
    fragment: int
    minimum_version: int


@dataclass(frozen=True, slots=True)
class MergedFragment:
    """A fragment that is whole and waits for the inner loop."""

    membership: Membership
    fragment: int
    version: int
    values: Tensor
    """f32, flat, on the host; nobody writes to it any more."""


class Arrivals:
    """At most one wish, one pull under way and one waiting fragment for each fragment."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._condition = threading.Condition()
        self._wishes: dict[int, Wish] = {}
        self._busy: set[int] = set()
        self._waiting: dict[int, MergedFragment] = {}
        self._closed = False

    def want(self, wish: Wish) -> None:
        """Have a fragment pulled. The link calls it for what is news only."""
        with self._condition:
            before = self._wishes.get(wish.fragment)
            if before and before.membership == wish.membership and before.minimum_version >= wish.minimum_version:
                return
            self._wishes[wish.fragment] = wish
            self._condition.notify_all()

    def session_over(self) -> None:
        """The next admission says anew what is to be pulled."""
        with self._condition:
            self._wishes.clear()

    def next_wish(self) -> Wish | None:
        """What a worker shall pull; it then calls ``done``. Waits; None: closed."""
        with self._condition:
            while not self._closed:
                for fragment, wish in self._wishes.items():
                    if fragment not in self._busy:
                        del self._wishes[fragment]
                        self._busy.add(fragment)
                        return wish
                self._condition.wait()
            return None

    def done(self, wish: Wish) -> None:
        """The worker's pull has ended, well or not."""
        with self._condition:
            self._busy.discard(wish.fragment)
            self._condition.notify_all()

    def landed(self, arrival: MergedFragment) -> None:
        """A fragment is whole."""
        with self._condition:
            self._waiting[arrival.fragment] = arrival
        self._bell.ring()

    def waiting_version(self, membership: Membership, fragment: int) -> int | None:
        """Version of the fragment that waits for the loop, if one of this epoch does."""
        with self._condition:
            arrival = self._waiting.get(fragment)
            same = arrival is not None and arrival.membership.epoch == membership.epoch
            return arrival.version if arrival is not None and same else None

    def take(self) -> list[MergedFragment]:
        """Everything that waits, for the inner loop."""
        if not self._waiting:  # without the lock: one that lands now is taken after the next step
            return []
        with self._condition:
            arrivals = list(self._waiting.values())
            self._waiting.clear()
            return arrivals

    def close(self) -> None:
        """End the workers."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
