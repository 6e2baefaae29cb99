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
    LOST = "lost"
    """Trained, and in no version whatever the link: values were not finite or not credible, the merge failed, the
    learner's process or session ended, or its fragment was merged while it had no session."""
    PENDING = "pending"
    """Trained and not synchronized yet, and the time since the last report. At a job's end: the unmerged rest."""
    WAITING = "waiting"
    """At the staleness bound."""
    OVERHEAD = "overhead"
    """Evaluations, snapshots for checkpoints, and everything else between two steps. The learner's own
    ``diloco_learner_seconds_total`` tells them apart."""
    AWAY = "away"
    """The rest: it had no session, it loaded the model, or it reported nothing."""


COMPUTING: Final = frozenset(
    (TimeClass.MERGED, TimeClass.OVERWRITTEN, TimeClass.LATE, TimeClass.LOST, TimeClass.PENDING)
)
"""Classes of inner steps, whatever became of them. Their share of the allotted time is the goodput, as in the paper."""
