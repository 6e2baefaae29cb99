"""Where the time of a learner's process went, by its own stopwatch: what a step report says of it.

Counted from the start of the process, so that a report which is lost on a broken connection is made up for by the next.
"""

from dataclasses import asdict, dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Seconds by kind, up to one moment."""

    training: float = 0.0
    """Inner steps, and the sleep of a learner that acts out slow hardware."""
    skipped: float = 0.0
    """Inner steps that changed nothing, because loss or gradient was not finite."""
    paused: float = 0.0
    """At the staleness bound: waited for the syncer."""
    copying: float = 0.0
    """Copied fragments to or from host buffers between two steps."""
    looking: float = 0.0
    """Everything else between two steps: looked at requests, waited for locks."""
    evaluating: float = 0.0
    checkpointing: float = 0.0
    """Took the snapshots of checkpoints."""
    loading: float = 0.0
    """Before the first step: built its own things, waited for the initial model. And after the last."""

    @property
    def wall_seconds(self) -> float:
        """All of it."""
        return float(sum(asdict(self).values()))

    @property
    def waited_seconds(self) -> float:
        """The inner loop stood still for synchronization without moving a byte."""
        return self.paused + self.looking

    @property
    def blocked_seconds(self) -> float:
        """The inner loop stood still for synchronization: waiting and copying."""
        return self.copying + self.paused + self.looking

    @property
    def other_work_seconds(self) -> float:
        """The inner loop stood still for what is neither training nor synchronization: evaluations and snapshots."""
        return self.evaluating + self.checkpointing

    def fraction(self, seconds: float) -> float:
        """Share that ``seconds`` are of the inner loop's time, that is without loading; 0 before its first step."""
        inner_loop_seconds = self.wall_seconds - self.loading
        return seconds / inner_loop_seconds if inner_loop_seconds > 0 else 0.0


NOTHING_TOLD: Final = TimeSpent()
"""Of a learner whose version does not report it."""
