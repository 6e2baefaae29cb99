"""The name of a pool's learners in their certificate, by which the further nodes of a unit know its first node.

The job's own authority signs it, so it need only tell the job's pools apart. Nothing resolves it (``syncer_name.py``).
"""

from typing import Final

_SUFFIX: Final = ".learner.diloco.internal"


def pool_name(region: str, pool: str) -> str:
    """The name, ``POOL.REGION.learner.diloco.internal``; both are DNS labels, so no two pools of a job share it."""
    return f"{pool}.{region}{_SUFFIX}"
