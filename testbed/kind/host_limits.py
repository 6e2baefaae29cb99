"""A kernel limit that clusters run into: each node has an init, a kubelet and a containerd that watch files.

Common default: 128 watchers for each user, which is two clusters or so; what fails then is a node's init, and it does
not say why. As root it is raised while there are clusters, and put back after the last one.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

from testbed.kind.cache import Cache

_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
_WANTED = 1024


def raise_for_clusters(cache: Cache, limit: Path = _LIMIT) -> None:
    """Raise it, or say that it is low where that is not allowed."""
    now = _read(limit)
    if now is None or now >= _WANTED:
        return
    if os.access(limit, os.W_OK):
        state = cache.state
        limit.write_text(f"{_WANTED}\n", encoding="ascii")
        cache.write(replace(state, inotify_instances=state.inotify_instances or now))
    else:
        sys.stderr.write(f"kind: fs.inotify.max_user_instances is {now}: more than two clusters may not start\n")


def put_back(cache: Cache, limit: Path = _LIMIT) -> None:
    """As it was, unless somebody has changed it since or clusters are left."""
    state = cache.state
    if state.inotify_instances is None or state.clusters:
        return
    if _read(limit) == _WANTED:
        limit.write_text(f"{state.inotify_instances}\n", encoding="ascii")
    cache.write(replace(state, inotify_instances=None))


def _read(limit: Path) -> int | None:
    try:
        return int(limit.read_text(encoding="ascii"))
    except OSError:
        return None  # the engine is on another kind of host
