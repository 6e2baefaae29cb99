"""Rate and delay of a simulated link, for relays on loopback.

Connections that send in one direction take turns at one `Pipe`, chunk by chunk, as on a real link, so control messages
pass between the chunks of a fragment. The clock is passed in.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

TURN_SECONDS = 0.01
"""Longest time that one chunk occupies a link, so that others get their turn (ours)."""
WAKEUP_DELAY_SECONDS = 0.005
"""A pipe counts as busy for this long after its last turn, as its users wake up a little late (ours)."""
LEAST_CHUNK_BYTES = 1448
"""Bytes of a TCP segment on Ethernet."""
MOST_CHUNK_BYTES = 1 << 18
MOST_BYTES_PER_SECOND = 1e9
"""Highest rate for which delayed chunks are counted, to bound the memory that a delay takes."""


class Pipe:
    """One direction of a link, or of several that share one. Used by several threads."""

    def __init__(self, bytes_per_second: float, clock: Callable[[], float]) -> None:
        """``clock`` returns seconds of a monotonic clock. An infinite rate limits nothing."""
        self.bytes_per_second = bytes_per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = 0.0

    def reserve(self, size_bytes: int) -> float:
        """Take the next turn; returns when the last byte is through."""
        with self._lock:
            now = self._clock()
            idle = now - self._free_at > WAKEUP_DELAY_SECONDS
            self._free_at = (now if idle else self._free_at) + size_bytes / self.bytes_per_second
            return self._free_at


@dataclass(frozen=True)
class Shape:
    """Rate and delay of one direction of a link."""

    pipes: tuple[Pipe, ...] = ()
    """Passed one after the other, such as the region's own and the syncer's. None: unlimited."""
    delay_seconds: float = 0.0
    """One way, after the bytes are through the pipes."""

    @property
    def chunk_bytes(self) -> int:
        """Bytes carried in one turn."""
        turns = (pipe.bytes_per_second * TURN_SECONDS for pipe in self.pipes)
        return max(LEAST_CHUNK_BYTES, int(min((MOST_CHUNK_BYTES, *turns))))

    @property
    def delayed_chunks(self) -> int:
        """Most chunks of one connection that are being delayed; beyond that its sender waits."""
        slowest = min((pipe.bytes_per_second for pipe in self.pipes), default=MOST_BYTES_PER_SECOND)
        carried = min(slowest, MOST_BYTES_PER_SECOND) * self.delay_seconds
        return 1 + int(carried / self.chunk_bytes)
