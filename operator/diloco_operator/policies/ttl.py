"""``ttlSecondsAfterFinished``: when a finished job is deleted, and its volume with it. Pure."""

from datetime import datetime

from diloco.spec import JobSpec


def seconds_to_live(spec: JobSpec, completion_time: datetime | None, now: datetime) -> float | None:
    """Below or at 0: delete it. None: it is kept."""
    if spec.ttl_seconds_after_finished is None or completion_time is None:
        return None
    return spec.ttl_seconds_after_finished - (now - completion_time).total_seconds()
