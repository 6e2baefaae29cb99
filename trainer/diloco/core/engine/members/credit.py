"""How much counts of the steps and tokens that a learner reports, and of those that it pushes (ours).

Learners count their own work, and weights, the schedule and the budget follow from it. What counts is limited by the
speed of other learners (`comparison`), over the time that the syncer has measured. Work beyond that is not refused: it
does not count.
"""

from dataclasses import dataclass, field, replace
from math import inf

from diloco.core.engine.events import FragmentArrived
from diloco.core.engine.rounds.averages import StepAverage


@dataclass(slots=True)
class Credit:
    """What counts of one learner's work, over all its processes since the syncer started."""

    least_step_seconds: float = 0.0
    """No step of it takes less; 0: there is nothing to compare it with."""
    most_tokens_per_second: float | None = None
    """None: there is nothing to compare it with."""
    most_tokens_per_step: float | None = None
    """None: there is nothing to compare it with."""
    steps: float = 0.0
    tokens: float = 0.0
    merged_tokens: list[float] = field(default_factory=list)
    """By fragment: the tokens up to which it can push no more."""

    def report(self, pace: StepAverage, steps: int, tokens: int) -> int:
        """Count a report of more ``steps`` and ``tokens``; returns by how many steps its clock advances."""
        before = int(self.steps)
        self.steps += steps * self.share(pace)
        self.tokens += tokens * self._share_of_tokens(pace)
        return int(self.steps) - before

    def away(self, pace: StepAverage, steps: int, seconds: float) -> None:
        """Count the steps that a process has made in the ``seconds`` without a session."""
        counted = min(steps, seconds / self.least_step_seconds) if self.least_step_seconds else steps
        self.steps += counted
        self.tokens += counted * pace.tokens_per_step

    def share(self, pace: StepAverage) -> float:
        """The share of its steps that counts, 0 to 1."""
        seconds = pace.seconds
        return 1.0 if seconds is None or seconds >= self.least_step_seconds else seconds / self.least_step_seconds

    def _share_of_tokens(self, pace: StepAverage) -> float:
        most, speed = self.most_tokens_per_second, pace.tokens_per_second
        if most is None:
            return 1.0
        return min(1.0, most / speed) if speed else float(pace.seconds != 0)

    def of(self, sent: FragmentArrived, interval: int, pace: StepAverage) -> FragmentArrived:
        """An outer gradient with the steps and tokens that count.

        It may arrive before the report of its last steps. Those of an ``interval`` are granted ahead. Its steps have as
        many tokens as those of its reports, and no more than those of comparable learners: tokens that are put into
        fewer steps would weigh more.
        """
        per_step = pace.tokens_per_step if pace.reports else inf
        if self.most_tokens_per_step is not None:
            per_step = min(per_step, self.most_tokens_per_step)
        if sent.steps <= 0 or sent.tokens <= 0 or per_step <= 0:
            return replace(sent, tokens=0)
        if (steps := round(sent.tokens / per_step)) > sent.steps:
            sent = replace(sent, steps=steps)
        ahead = interval * sent.tokens / sent.steps
        most = max(0, int(self.tokens + ahead - self.merged_tokens[sent.fragment]))
        if sent.tokens <= most:
            return sent
        return replace(sent, steps=max(1, round(sent.steps * most / sent.tokens)), tokens=most)

    def merged(self, sent: FragmentArrived) -> None:
        """Note that an outer gradient is in a merge: its work cannot be pushed again."""
        self.merged_tokens[sent.fragment] = max(self.tokens, self.merged_tokens[sent.fragment] + sent.tokens)
