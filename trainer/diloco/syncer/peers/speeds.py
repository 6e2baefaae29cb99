"""Measures how fast learners are, to bound what one says of its steps: how long they take, how many it has made.

Learners count their own steps, so a learner's bound follows from the speed of the others, not from its own. A pool has
one kind of hardware, so a learner that claims to be far faster than the fastest other one of its pool is refused.
"""

from dataclasses import dataclass, field
from heapq import nlargest
from operator import itemgetter

from diloco.core.engine.rounds.averages import MEMORY
from diloco.spec.names.learner_ids import pool_of

POOL_FACTOR = 32
"""How many times as fast as the fastest other of its pool a learner may be: machines are shared or simulated (ours)."""
JOB_FACTOR = 1000
"""The same if the others are of other pools, or of one whose learners differ in their batch (ours)."""
FASTEST_STEPS_PER_SECOND = 10_000.0
"""Limit if there is no learner to compare with: no step of any model takes less than 0.1 ms (ours)."""
MEASURED_SECONDS = 5.0
"""Time over which a speed is measured; the highest counts, as a pause says nothing about speed (ours)."""
SAVED_SECONDS = 30.0
"""A silent learner may have made the steps of this much time, beside those that it may make on its own (ours)."""

CLAIM_FACTOR = 2.0
"""What a learner says of its step counts within this factor of what is measured (ours)."""


@dataclass(slots=True)
class _Speed:
    since: tuple[int, float]
    """Step and time at which the current measurement began. The first report starts the first one, since a first step
    may compile for minutes."""
    highest: float | None = None
    """Steps per second; None: not measured yet."""


class Speeds:
    """The highest speed of every learner, and the limits that follow for the others."""

    def __init__(self) -> None:
        self._speeds: dict[str, _Speed] = {}
        self._fastest: dict[str, dict[str, float]] = {}
        """By pool: its two fastest learners."""

    def reported(self, learner: str, step: int, now: float) -> None:
        """Note that a learner has reported ``step`` at ``now``, in seconds."""
        speed = self._speeds.setdefault(learner, _Speed((step, now)))
        seconds = now - speed.since[1]
        if seconds < MEASURED_SECONDS:
            return
        before, measured = speed.highest, (step - speed.since[0]) / seconds
        speed.since = (step, now)
        if before is None:  # the others are not bounded by it yet: it may be of a pause, or of a second compilation
            speed.highest = measured
            return
        speed.highest = max(before, measured)
        pool = self._fastest.get(pool_of(learner), {}) | {learner: speed.highest}
        self._fastest[pool_of(learner)] = dict(nlargest(2, pool.items(), key=itemgetter(1)))

    def begins(self, learner: str) -> None:
        """Note that another process begins: its first step is not measured."""
        self._speeds.pop(learner, None)

    def most_steps_per_second(self, learner: str, *, alike: bool = True) -> float:
        """The limit for a learner, from the others' speeds. ``alike``: a step of its pool is the same for all."""
        own = pool_of(learner)
        beside = max((speed for name, speed in self._fastest.get(own, {}).items() if name != learner), default=0.0)
        compared = (POOL_FACTOR if alike else JOB_FACTOR) * beside
        if not compared:
            elsewhere = (speed for pool, fastest in self._fastest.items() if pool != own for speed in fastest.values())
            compared = JOB_FACTOR * max(elsewhere, default=0.0)
        return min(compared or FASTEST_STEPS_PER_SECOND, FASTEST_STEPS_PER_SECOND)


class StepSeconds:
    """How long a process's steps take by the syncer's clock, which bounds what the process says of it."""

    def __init__(self, step: int, now: float) -> None:
        """Start with a process that is admitted at this step."""
        self.begins(step, now)
        self._seconds = self._steps = 0.0
        """Moving sums over reports, as one may stand for several steps."""

    def begins(self, step: int, now: float) -> None:
        """A session begins: what passes until its first report tells nothing of a step, it loads or was away."""
        self._step, self._at, self._is_first = step, now, True

    def believed(self, claimed: float, step: int, now: float) -> float:
        """Note a report; returns what counts of the seconds that the process says a step takes.

        Measured steps include waits for the syncer, and reports arrive in bursts. So a claim counts within
        ``CLAIM_FACTOR`` of the average.
        """
        seconds, steps = now - self._at, step - self._step
        if steps > 0:
            if not self._is_first:
                self._seconds = MEMORY * self._seconds + (1 - MEMORY) * seconds
                self._steps = MEMORY * self._steps + (1 - MEMORY) * steps
            self._step, self._at, self._is_first = step, now, False
        if not self._steps:
            return min(claimed, seconds)
        measured = self._seconds / self._steps
        return max(measured / CLAIM_FACTOR, min(measured * CLAIM_FACTOR, claimed))


@dataclass(slots=True)
class Allowance:
    """What a learner may claim beyond its recorded counts: grows with time, and is used up by accepted claims."""

    steps: int
    """Recorded inner steps."""
    data_position: int
    """Recorded sequences."""
    at: float
    """Time of the last update, in seconds."""
    own_steps: int
    """Steps it may make without contact: up to the staleness bound."""
    _saved: list[float] = field(init=False)
    """Unused steps, and sequences in units of steps."""

    def __post_init__(self) -> None:
        self._saved = [float(self.own_steps), float(self.own_steps)]

    def problem(self, steps: int, data_position: int, sequences_per_step: int, steps_per_second: float) -> str:
        """Why it cannot have come so far by now; empty if it can. Call ``grow`` first."""
        more, taken = steps - self.steps, data_position - self.data_position
        if more <= self._saved[0] and taken <= self._saved[1] * sequences_per_step:
            return ""
        return (
            f"{more} steps and {taken} sequences more than are known; there was time for {int(self._saved[0])} steps"
            f" and {int(self._saved[1] * sequences_per_step)} sequences, at {steps_per_second:.3g} steps a second"
        )

    def grow(self, now: float, steps_per_second: float) -> None:
        """Update it to ``now``."""
        most = self.own_steps + SAVED_SECONDS * steps_per_second
        more = steps_per_second * max(0.0, now - self.at)
        self._saved = [min(most, saved + more) for saved in self._saved]
        self.at = now

    def record(self, steps: int, data_position: int, sequences_per_step: int) -> None:
        """Record that it has come so far."""
        self._saved[0] -= max(0, steps - self.steps)
        self._saved[1] -= max(0, data_position - self.data_position) / sequences_per_step
        self.steps, self.data_position = max(self.steps, steps), max(self.data_position, data_position)
