"""Divides the file descriptors of a process between its peers' connections and its own use.

A server whose clients take every descriptor can neither write a checkpoint nor answer a health check.
"""

import resource
from typing import Final

RESERVED: Final = 256
"""Reserved for the process itself: files, the HTTP server, libraries."""
_FEWEST, _MOST = 64, 100_000


def connections_allowed() -> int:
    """Raise this process's limit as far as allowed; returns how many connections peers may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST + RESERVED
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return share_of_peers(wanted if soft == resource.RLIM_INFINITY else soft)


def share_of_peers(limit: int) -> int:
    """Connections that peers may have if ``limit`` descriptors can be open. Pure."""
    return min(_MOST, max(_FEWEST, limit - RESERVED))
