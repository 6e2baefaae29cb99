"""The classes of a learner's allotted time. Every second belongs to one; ``time_account`` decides to which."""

from enum import StrEnum
from typing import Final


class TimeClass(StrEnum):
    """How a learner's time was used."""

    MERGED = "merged"
    """Trained, and in the global model."""
    OVERWRITTEN = "overwritten"
    """Trained between the capture of an outer gradient and the swap-in of the version that was merged meanwhile."""
    LATE = "late"
    """Trained and left out: the learner was asked, and had not sent it when the members were frozen."""
    OUTDATED = "outdated"
    """Trained and left out: measured from a version older than ``sync.maxVersionLag`` allows."""
    MISSED = "missed"
    """Trained and left out: the fragment was merged while the learner had no session or was loading."""
    UNUSABLE = "unusable"
    """Trained and left out: the outer gradient was not finite, or the merge failed."""
    LOST = "lost"
    """Trained, and gone with the learner's process, or with the version that a restarted syncer no longer knew."""
    SKIPPED = "skipped"
    """Inner steps that changed nothing, because loss or gradient was not finite."""
    PENDING = "pending"
    """Trained and not synchronized yet, and the time since the last report. At a job's end: the unmerged rest."""
    WAITING = "waiting"
    """At the staleness bound."""
    COPYING = "copying"
    """Copying fragments between two steps."""
    BETWEEN_STEPS = "between_steps"
    """Everything else between two steps."""
    EVALUATING = "evaluating"
    CHECKPOINTING = "checkpointing"
    LOADING = "loading"
    """Starting up and receiving the model, for the learner's first session."""
    REJOINING = "rejoining"
    """The same for a later one: of a new process, or after a connection broke."""
    AWAY = "away"
    """No session, and nothing that the learner has reported since covers it."""
    UNEXPLAINED = "unexplained"
    """The rest: no report covers it."""


COMPUTING: Final = frozenset(
    (
        TimeClass.MERGED,
        TimeClass.OVERWRITTEN,
        TimeClass.LATE,
        TimeClass.OUTDATED,
        TimeClass.MISSED,
        TimeClass.UNUSABLE,
        TimeClass.LOST,
        TimeClass.SKIPPED,
        TimeClass.PENDING,
    )
)
"""Classes of inner steps, whatever became of them. Their share of the allotted time is the goodput, as in the paper."""
