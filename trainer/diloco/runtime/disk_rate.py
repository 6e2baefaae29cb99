"""How long a write at a process's end may take: by its size, as no constant suits both a small and a large model.

The operator gives a pod as much time as its process takes by the same rule.
"""

from pathlib import Path
from typing import Final

LEAST_BYTES_PER_SECOND: Final = 50e6
"""The disk's rate that an end counts on (ours): half a slow disk's 100 MB/s, as a write under way comes first."""


def longest_write_seconds(size_bytes: float, least_seconds: float) -> float:
    """Longest time for writing so many bytes; never less than ``least_seconds``, which small ones have."""
    return max(least_seconds, size_bytes / LEAST_BYTES_PER_SECOND)


def newest_bytes(checkpoints: Path) -> int:
    """Size of the newest checkpoint in a folder of them, whose names are numbers; 0 if there is none."""
    names = [path for path in checkpoints.iterdir() if path.name.isdigit()] if checkpoints.is_dir() else []
    newest = max(names, key=lambda path: int(path.name), default=None)
    return 0 if newest is None else sum(path.stat().st_size for path in newest.iterdir())
