"""How long a write at a process's end may take: by its size, as no constant suits both a small and a large model.

The operator gives a pod as much time as its process takes by the same rule.
"""

from typing import Final

LEAST_BYTES_PER_SECOND: Final = 50e6
"""The disk's rate that an end counts on (ours): half a slow disk's 100 MB/s, as a write under way comes first."""


def longest_write_seconds(size_bytes: float, least_seconds: float) -> float:
    """Longest time for writing so many bytes; never less than ``least_seconds``, which small ones have."""
    return max(least_seconds, size_bytes / LEAST_BYTES_PER_SECOND)
