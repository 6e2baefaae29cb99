"""The sizes that bound a tape."""

from dataclasses import dataclass
from typing import Final, Self

LARGEST_SEGMENT_BYTES: Final = 64 << 20
"""A segment of a tape with room for many (ours)."""
SEGMENTS: Final = 16
"""The bound is at least so many segments, so that deleting one leaves most of the tape (ours)."""


@dataclass(frozen=True, slots=True)
class TapeLimits:
    """Sizes that bound the tape."""

    segment_bytes: int = LARGEST_SEGMENT_BYTES
    """When a segment exceeds this, it is closed and the next one begun."""
    kept_bytes: int | None = 1 << 30
    """All segments of all epochs; the oldest closed ones are deleted first. None: all are kept (``--record``)."""
    waiting_bytes: int = 32 << 20
    """Lines kept in memory while they cannot be written."""

    @classmethod
    def of_size(cls, kept_bytes: int, *, keep_all: bool = False) -> Self:
        """Limits under which all files together have at most ``kept_bytes``; ``keep_all``: nothing is deleted."""
        segment_bytes = min(LARGEST_SEGMENT_BYTES, kept_bytes // SEGMENTS)
        return cls(segment_bytes, None if keep_all else kept_bytes)
