"""How a job is scaled: down, the learners first and then the syncer; up, both together.

Pure. The syncer stays until no learner pod is left, so that every learner can hand in its work and the syncer's last
checkpoint contains it.
"""

from collections.abc import Mapping
from datetime import datetime

from diloco.spec.status import JobStatus
from diloco_operator.manifests import Scale
from diloco_operator.names import PoolKey


def running(desired: Mapping[PoolKey, int]) -> Scale:
    """Everything up."""
    return Scale(learners=desired, syncer=1)


def stopping(desired: Mapping[PoolKey, int], learner_pods_left: int) -> Scale:
    """Everything down, in order."""
    return Scale(learners=dict.fromkeys(desired, 0), syncer=int(learner_pods_left > 0))


def start_time(status: JobStatus, now: datetime, *, suspended: bool) -> datetime | None:
    """When the job was started or last resumed: set anew on resuming, since it is dropped while the job is suspended.

    As in a batch/v1 Job. It needs no memory other than the status. ``now`` is in whole seconds.
    """
    return None if suspended else status.start_time or now
