"""What is recorded and believed of times when the operator's clock is wrong, or was. Pure.

The status has times by this clock, and is the only memory. A time that has not come yet is of a clock that was ahead.
What lasts a while from there would last too long, so it is shortened. Times by which a job ends or is deleted are
recorded rather too late than too early: that cannot be undone.
"""

from datetime import datetime

from diloco.spec.status import JobStatus


def not_after(time: datetime, now: datetime) -> datetime:
    """``time``, or ``now`` in whole seconds if ``time`` has not come yet."""
    return time if time <= now else now.replace(microsecond=0)


def latest_known(before: JobStatus, created: datetime | None, now: datetime) -> datetime:
    """The time in whole seconds, by a clock that may be behind: nothing is earlier than what has happened before.

    Args:
        before: The status as it was last written.
        created: When the job was made, by the API server's clock; None: not known.
        now: The time by the operator's clock.
    """
    known = [condition.last_transition_time for condition in before.conditions]
    if created is not None:
        known.append(created)
    if before.progress is not None and before.progress.updated_at is not None:
        known.append(before.progress.updated_at)
    return max([now, *known]).replace(microsecond=0)
