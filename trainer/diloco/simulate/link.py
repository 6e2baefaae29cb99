"""A connection between a learner and the syncer in virtual time: latency, bandwidth, and an end.

Control messages take the latency alone; fragments go one after the other in each direction, as on a link of
limited bandwidth. What is under way when the connection breaks never arrives.
"""

from collections.abc import Callable
from enum import Enum

from diloco.simulate.clock import VirtualClock
from diloco.simulate.scenario import Link


class Way(Enum):
    """Direction of a transfer."""

    UP = "up"
    """Learner to syncer."""
    DOWN = "down"
    """Syncer to learner."""


class Connection:
    """One session and its bulk transfers. A learner that comes back opens another."""

    def __init__(self, clock: VirtualClock, link: Link) -> None:
        self._clock = clock
        self._link = link
        self._free_at = dict.fromkeys(Way, 0.0)
        self.open = True
        self.bytes_moved = dict.fromkeys(Way, 0)

    def send(self, deliver: Callable[[], None]) -> None:
        """Deliver a control message."""
        self._arrive(self._clock.now + self._link.latency_seconds, deliver)

    def transfer(self, way: Way, size_bytes: int, deliver: Callable[[], None]) -> None:
        """Deliver ``size_bytes`` behind what is already under way in that direction."""
        start = max(self._clock.now, self._free_at[way])
        self._free_at[way] = start + size_bytes / self._link.bytes_per_second
        self.bytes_moved[way] += size_bytes
        self._arrive(self._free_at[way] + self._link.latency_seconds, deliver)

    def close(self) -> None:
        """Break it."""
        self.open = False

    def _arrive(self, when: float, deliver: Callable[[], None]) -> None:
        def arrive() -> None:
            if self.open:
                deliver()

        self._clock.at(when, arrive)
