"""``ttlSecondsAfterFinished``: when a finished job is deleted, and its volume with it. Pure."""

from datetime import datetime


def seconds_to_live(kept_seconds: int | None, completion_time: datetime | None, now: datetime) -> float | None:
    """``kept_seconds``: the field. Below or at 0: delete it. None: it is kept."""
    if kept_seconds is None or completion_time is None:
        return None
    return kept_seconds - (now - completion_time).total_seconds()
