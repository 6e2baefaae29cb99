"""How fast learners are, and so how much one can have done since it was last heard.

Steps are counted by those who make them, so one learner's speed says nothing of what it may claim: the others' does. A
pool is of one kind of hardware, so whoever is far faster than the fastest other one of its pool is not believed. It
must not know messages or sessions.
"""

from dataclasses import dataclass, field

from diloco.spec.learner_ids import pool_of

POOL_FACTOR = 32
"""Times the fastest other learner of its pool that one may be: machines are shared, and slow ones acted out (ours)."""
JOB_FACTOR = 1000
"""The same where the others are of other pools (ours)."""
FASTEST_STEPS_PER_SECOND = 10_000.0
"""Where there is nobody to compare with: no step of any model takes less than a tenth of a millisecond (ours)."""
MEASURED_SECONDS = 5.0
"""A speed is measured over so long, and the highest counts: a pause says nothing of it (ours)."""
SAVED_SECONDS = 30.0
"""A learner that was not heard may have made the steps of so long, beside those that it may make on its own (ours)."""


@dataclass(slots=True)
class _Speed:
    since: tuple[int, float]
    """Step and time at which the present measurement began. The first report begins the first one: a first step may
    compile for minutes."""
    highest: float = 0.0
    """Steps a second; 0: not measured yet."""


class Speeds:
    """The highest speed of every learner, and what follows for the others."""

    def __init__(self) -> None:
        self._speeds: dict[str, _Speed] = {}
        self._fastest: dict[str, dict[str, float]] = {}
        """By pool: its two fastest learners."""

    def reported(self, learner: str, step: int, now: float) -> None:
        """A learner has come to ``step`` at ``now``, in seconds."""
        speed = self._speeds.setdefault(learner, _Speed((step, now)))
        seconds = now - speed.since[1]
        if seconds < MEASURED_SECONDS:
            return
        speed.highest = max(speed.highest, (step - speed.since[0]) / seconds)
        speed.since = (step, now)
        pool = self._fastest.setdefault(pool_of(learner), {})
        pool[learner] = speed.highest
        if len(pool) > 2:
            del pool[min(pool, key=lambda name: pool[name])]

    def begins(self, learner: str) -> None:
        """Another process begins: its first step is no measure."""
        if learner in self._speeds:
            highest = self._speeds.pop(learner).highest
            if highest:
                self._fastest.setdefault(pool_of(learner), {}).setdefault(learner, highest)

    def most_steps_per_second(self, learner: str) -> float:
        """What a learner can make, held against the others."""
        own = pool_of(learner)
        beside = max((speed for name, speed in self._fastest.get(own, {}).items() if name != learner), default=0.0)
        compared = POOL_FACTOR * beside
        if not compared:
            elsewhere = (speed for pool, fastest in self._fastest.items() if pool != own for speed in fastest.values())
            compared = JOB_FACTOR * max(elsewhere, default=0.0)
        return min(compared or FASTEST_STEPS_PER_SECOND, FASTEST_STEPS_PER_SECOND)


@dataclass(slots=True)
class Allowance:
    """What a learner may claim beyond what is known of it: it grows with time and is used up by what is believed."""

    steps: int
    """Known: inner steps that it has made."""
    data_position: int
    """Known: sequences that it has taken."""
    at: float
    """When it was last looked at, in seconds."""
    own_steps: int
    """What it may make without being heard: up to the staleness bound."""
    _saved: list[float] = field(init=False)
    """Steps, and steps' worth of sequences."""

    def __post_init__(self) -> None:
        self._saved = [float(self.own_steps)] * 2

    def problem(self, steps: int, data_position: int, sequences_per_step: int, steps_per_second: float) -> str:
        """Why it cannot have come so far by now; empty if it can. ``grow`` first."""
        more, taken = steps - self.steps, data_position - self.data_position
        if more <= self._saved[0] and taken <= self._saved[1] * sequences_per_step:
            return ""
        return (
            f"{more} steps and {taken} sequences more than are known; there was time for {int(self._saved[0])} steps"
            f" and {int(self._saved[1] * sequences_per_step)} sequences, at {steps_per_second:.3g} steps a second"
        )

    def grow(self, now: float, steps_per_second: float) -> None:
        """Time has passed."""
        most = self.own_steps + SAVED_SECONDS * steps_per_second
        more = steps_per_second * max(0.0, now - self.at)
        self._saved = [min(most, saved + more) for saved in self._saved]
        self.at = now

    def believe(self, steps: int, data_position: int, sequences_per_step: int) -> None:
        """It has come so far."""
        self._saved[0] -= max(0, steps - self.steps)
        self._saved[1] -= max(0, data_position - self.data_position) / sequences_per_step
        self.steps, self.data_position = max(self.steps, steps), max(self.data_position, data_position)
