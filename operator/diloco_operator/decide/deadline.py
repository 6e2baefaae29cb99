"""``activeDeadlineSeconds``, as in a batch/v1 Job: counted from when the job was started or last resumed. Pure."""

from datetime import datetime

from diloco_operator.decide.ending import End
from diloco_operator.decide.reasons import Reason


def seconds_until_deadline(allowed_seconds: int | None, start_time: datetime | None, now: datetime) -> float | None:
    """Below or at 0: it has passed. None: there is none, or the clock does not run (suspended)."""
    if allowed_seconds is None or start_time is None:
        return None
    return allowed_seconds - (now - start_time).total_seconds()


def deadline_end(allowed_seconds: int | None, start_time: datetime | None, now: datetime) -> End | None:
    """The end of a job whose deadline has passed."""
    left = seconds_until_deadline(allowed_seconds, start_time, now)
    if left is None or left > 0:
        return None
    text = f"not complete after spec.activeDeadlineSeconds, {allowed_seconds}"
    return End("Failed", Reason.DEADLINE_EXCEEDED, text)
