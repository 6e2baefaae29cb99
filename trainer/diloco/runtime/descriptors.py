"""How many files and connections a process may have open, and how they are shared out.

A server that gives every descriptor to whoever connects can write no checkpoint and answer no health check. It must not
know who gets them.
"""

import resource
from typing import Final

RESERVED: Final = 256
"""Kept from peers: files, the HTTP server, libraries."""
_FEWEST, _MOST = 64, 100_000


def connections_allowed() -> int:
    """Raise this process's limit as far as it may, and return how many connections peers may have of it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST + RESERVED
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return share_of_peers(wanted if soft == resource.RLIM_INFINITY else soft)


def share_of_peers(limit: int) -> int:
    """Connections that peers may have where ``limit`` descriptors can be open. Pure."""
    return min(_MOST, max(_FEWEST, limit - RESERVED))
