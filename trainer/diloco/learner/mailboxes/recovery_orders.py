"""What a restarted syncer asks of the fragments that this learner holds, and where these are.

The syncer asks before it admits the learner, on a session that has no Welcome. So an order belongs to that session, and
what is held belongs to an earlier epoch.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from diloco.learner.mailboxes.holdings import Holdings
from diloco.learner.mailboxes.pull_queue import PullQueue
from diloco.wire.messages import Declined, HeldWanted


@dataclass(frozen=True, slots=True)
class RecoveryOrder:
    """A fragment to send, and how to say that it is not there."""

    wanted: HeldWanted
    decline: Callable[[Declined], None]
    """Sends on the session that the order came on. Raises WireError."""


class HeldFragments:
    """Finds what this learner holds: what its inner loop trains on, and what waits to be swapped in."""

    def __init__(self, holdings: Holdings, pull_queue: PullQueue) -> None:
        self._holdings = holdings
        self._pull_queue = pull_queue

    def to_join_with(self) -> tuple[str, tuple[int, ...]]:
        """Epoch and, by fragment, one more than the newest version that is held; ("", ()) if nothing is."""
        epoch, versions = self._holdings.newest()
        waiting = self._pull_queue.waiting_versions(epoch)
        held = tuple(
            1 + max(-1 if version is None else version, waiting.get(fragment, -1))
            for fragment, version in enumerate(versions)
        )
        return (epoch, held) if epoch and any(held) else ("", ())

    def find(self, fragment: int, version: int) -> tuple[str, Tensor] | None:
        """Epoch and values (f32, flat, on the host) of this version of a fragment; None if it is no longer held."""
        epoch, versions = self._holdings.newest()
        if fragment >= len(versions):
            return None
        held = self._holdings.held(epoch, fragment)
        if held is not None and held.version == version:
            return epoch, held.values
        waiting = self._pull_queue.waiting(epoch, fragment)
        return None if waiting is None or waiting.version != version else (epoch, waiting.values)


class RecoveryOrders:
    """At most one order for each fragment, for as long as the session lasts that it came on."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._orders: dict[int, RecoveryOrder] = {}
        self._current: dict[int, RecoveryOrder] = {}
        self._closed = False

    def put(self, order: RecoveryOrder) -> None:
        """Have a fragment sent; an earlier order for it is void."""
        with self._condition:
            self._orders[order.wanted.fragment] = self._current[order.wanted.fragment] = order
            self._condition.notify_all()

    def next(self) -> RecoveryOrder | None:
        """The next order for a worker. Waits; None: closed."""
        with self._condition:
            while not self._closed:
                if self._orders:
                    return self._orders.pop(next(iter(self._orders)))
                self._condition.wait()
            return None

    def is_current(self, order: RecoveryOrder) -> bool:
        """Whether the order's session is still open, and it is the latest for its fragment."""
        with self._condition:
            return self._current.get(order.wanted.fragment) is order

    def session_over(self) -> None:
        """Void all orders."""
        with self._condition:
            self._orders.clear()
            self._current.clear()

    def close(self) -> None:
        """End the workers."""
        with self._condition:
            self._closed = True
            self._orders.clear()
            self._current.clear()
            self._condition.notify_all()
