"""How a learner's process has spent its time, as a step report says.

Counted from the start of the process, so that the next report makes up for one that is lost with a broken connection.
"""

from dataclasses import asdict
from typing import Final

from diloco.core.value import value


@value
class TimeSpent:
    """Seconds by kind, up to one moment."""

    training: float = 0.0
    """Inner steps, and the sleep of a learner that simulates slow hardware."""
    skipped: float = 0.0
    """Inner steps that changed nothing, because loss or gradient was not finite."""
    paused: float = 0.0
    """At the staleness bound, waiting for the syncer."""
    copying: float = 0.0
    """Copying fragments to or from host buffers between two steps."""
    looking: float = 0.0
    """Everything else between two steps: checking requests, waiting for locks."""
    evaluating: float = 0.0
    checkpointing: float = 0.0
    """Taking the snapshots for checkpoints."""
    loading: float = 0.0
    """Before the first step, while it builds the model and waits for the initial weights; and after the last step."""

    @property
    def wall_seconds(self) -> float:
        """The total."""
        return float(sum(asdict(self).values()))

    @property
    def waited_seconds(self) -> float:
        """Time in which the inner loop waited for synchronization without copying."""
        return self.paused + self.looking

    @property
    def blocked_seconds(self) -> float:
        """Time in which the inner loop stood still for synchronization: waiting and copying."""
        return self.copying + self.paused + self.looking

    @property
    def other_work_seconds(self) -> float:
        """Time in which the inner loop stood still for evaluations and snapshots."""
        return self.evaluating + self.checkpointing

    def fraction(self, seconds: float) -> float:
        """Share of the inner loop's time without loading that ``seconds`` are; 0 before its first step."""
        inner_loop_seconds = self.wall_seconds - self.loading
        return seconds / inner_loop_seconds if inner_loop_seconds > 0 else 0.0


NO_TIME: Final = TimeSpent()
"""Of a process that has just begun."""
