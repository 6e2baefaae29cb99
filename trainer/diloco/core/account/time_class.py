"""The classes of a learner's allotted time. Every second belongs to one; ``time_account`` decides to which."""

from enum import StrEnum
from typing import Final


class TimeClass(StrEnum):
    """How a learner's time was used, as far as somebody can act on the difference."""

    MERGED = "merged"
    """Trained, and in the global model."""
    OVERWRITTEN = "overwritten"
    """Trained between the capture of an outer gradient and the swap-in of the version that was merged meanwhile."""
    LATE = "late"
    """Trained and left out: it had not arrived when the members were frozen, or was measured from a version older than
    ``sync.maxVersionLag`` allows."""
    UNUSABLE = "unusable"
    """Trained and left out: loss, gradient or outer gradient was not finite, or the merge failed."""
    LOST = "lost"
    """Trained, and gone with the learner's process or session, or with the version that a restarted syncer no longer
    knew; or its fragment was merged while the learner had no session."""
    PENDING = "pending"
    """Trained and not synchronized yet, and the time since the last report. At a job's end: the unmerged rest."""
    WAITING = "waiting"
    """At the staleness bound."""
    BETWEEN_STEPS = "between_steps"
    """Copying fragments, and everything else between two steps."""
    OVERHEAD = "overhead"
    """Evaluating the global model, and taking snapshots for checkpoints."""
    LOADING = "loading"
    """Starting up and receiving the model, for the learner's first session."""
    AWAY = "away"
    """No session, or loading for a later one, and nothing else that the learner has reported since covers it."""
    UNEXPLAINED = "unexplained"
    """The rest: no report covers it."""


COMPUTING: Final = frozenset(
    (
        TimeClass.MERGED,
        TimeClass.OVERWRITTEN,
        TimeClass.LATE,
        TimeClass.UNUSABLE,
        TimeClass.LOST,
        TimeClass.PENDING,
    )
)
"""Classes of inner steps, whatever became of them. Their share of the allotted time is the goodput, as in the paper."""
BLOCKED: Final = (TimeClass.WAITING, TimeClass.BETWEEN_STEPS)
"""Classes of time in which the inner loop stood still for synchronization."""
