"""Keeps freed memory in the process: the first use of a new page costs several times what a copy into it costs."""

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1  # malloc.h
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_MAPPED_FROM_BYTES: Final = 32 << 20
"""glibc's largest. Larger blocks are mapped one by one: in the heap, as with none mapped (``M_MMAP_MAX``), they leave
gaps. With fragments of 64 MiB a learner then holds 2.3 GB instead of 1.5."""
_KEPT_BYTES: Final = 256 << 20
"""Free memory kept at the top of the heap: activations of a step, or parts of several transfers."""


def keep_freed_memory() -> None:
    """Make glibc keep freed blocks, for the whole process; with another C library do nothing.

    Call it when a process starts. All threads share one heap, so that what one has freed serves the others.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
