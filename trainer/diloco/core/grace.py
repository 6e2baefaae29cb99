"""The grace window: how long a round that has its quorum waits for learners that are not ready (paper, Eq. 3).

``slack = tau * step - (quorum + sync)`` is the part of the overlap that synchronization leaves unused; a share ``gamma
< 1`` of it may be waited without delaying any learner. All durations are moving averages in seconds.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Durations:
    """Moving averages, in seconds."""

    step: float
    """xi_step: an inner step of the slowest learner that counts towards the quorum."""
    quorum: float
    """xi_quorum: from requesting a fragment until a quorum has sent it."""
    sync: float
    """xi_sync: from closing a round until learners train on its result."""


@dataclass(frozen=True, slots=True)
class GraceWindow:
    """The length of a window, and why."""

    seconds: float
    reason: str


def grace_window(durations: Durations, *, overlap: int, safety: float, maximum_seconds: float | None) -> GraceWindow:
    """Length of the grace window, clamped to [0, one inner step], or to ``maximum_seconds`` if that is given."""
    slack = overlap * durations.step - (durations.quorum + durations.sync)
    ceiling = durations.step if maximum_seconds is None else maximum_seconds
    seconds = min(max(0.0, safety * slack), ceiling)
    return GraceWindow(
        seconds,
        f"grace {seconds:.3f} s = {safety:g} x slack {slack:.3f} s (overlap {overlap} x step {durations.step:.3f} s"
        f" - quorum {durations.quorum:.3f} s - sync {durations.sync:.3f} s), at most {ceiling:.3f} s",
    )
