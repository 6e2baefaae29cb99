"""Checks what learners report of their steps against the job, and measures how long these take.

The engine compares learners by their speed (`diloco.core.engine.members.comparison`), so nothing here is compared. What
no learner of the job can say is refused: more tokens than its steps have, more steps on a fragment than the staleness
bound allows, counts that go back. A learner's step counts as long as the syncer's clock shows, from one report to the
next: a learner that says less is not faster.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from diloco.core.engine.actions import Admit
from diloco.core.engine.engine import Progress
from diloco.core.engine.events import StepReported
from diloco.core.engine.rounds.averages import StepAverage
from diloco.spec import JobSpec
from diloco.spec.names.learner_ids import pool_of
from diloco.spec.placement import Pool
from diloco.spec.training import TrainingSpec
from diloco.wire.messages import Join, PushHeader

LIFE_FACTOR = 100
"""The most that a learner can have trained before it joins, as a multiple of the job's budget, or of what is merged of
a budget that was larger (ours)."""
CLAIM_FACTOR = 2.0
"""What a learner says of its step counts down to the measured duration divided by this (ours): that includes waits."""


class ClaimError(RuntimeError):
    """A learner claims what none of the job can; one line."""


@dataclass(frozen=True, slots=True)
class ClaimLimits:
    """Limits that follow from the job."""

    tokens_per_step: Callable[[str], int]
    """Tokens in an inner step of a learner, at most, by its id."""
    bound_steps: int
    """Inner steps a learner makes on a fragment at most before it receives it."""
    life_tokens: Callable[[], float]
    """Tokens that a learner can have trained before it joins, at most."""
    sequence_length: int

    @classmethod
    def of(cls, spec: JobSpec, pools: Mapping[str, Pool], progress: Callable[[], Progress]) -> Self:
        """The limits for a job and its pools, to which some may be added later, at its ``progress``."""

        def life() -> float:
            now = progress()
            return LIFE_FACTOR * max(now.budget_tokens, now.merged_tokens)

        per_step = tokens_per_step(spec.training, pools)
        return cls(per_step, spec.sync.staleness_bound_steps, life, spec.training.sequence_length)


@dataclass(slots=True)
class _Account:
    """What is known of a learner. Steps and tokens are counted over all its processes."""

    instance: str
    step: int
    tokens: int
    """What counts as reported by ``step``."""
    at: float
    """Time of the latest report, or of the first admission, in seconds."""
    pace: StepAverage = field(default_factory=StepAverage)
    """By the syncer's clock, of the process."""
    uncounted_tokens: int = 0
    """Of the process: tokens that its first report was ahead of what its steps can have."""
    reported: bool = False
    """The process has reported."""
    away: bool = True
    """What passes until the next report tells nothing of a step: the process loads, or was away."""

    def believed(self, claimed: float, steps: int, now: float) -> float:
        """Seconds that count for each of ``steps`` more steps, of which the process says that each took ``claimed``.

        Measured steps include waits for the syncer, and reports arrive in bursts. So an average is measured.
        """
        seconds = (now - self.at) / steps
        if not self.away:
            self.pace.add(seconds, steps)
        measured = self.pace.seconds
        counts = claimed if measured is None else min(measured, max(measured / CLAIM_FACTOR, claimed))
        # It can have made those that it made without a session since its latest report.
        return min(counts, seconds) if self.away else counts


class Claims:
    """The claims of all learners. Owned by the event loop."""

    def __init__(self, limits: ClaimLimits, refused: Callable[[], None], clock: Callable[[], float]) -> None:
        """Start without any learner; ``refused`` is called for every claim that is refused."""
        self._limits = limits
        self._refused = refused
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    def check_join(self, join: Join) -> None:
        """Check what a process says it has done, before it is admitted.

        Raises:
            ClaimError: no learner of the job can have done so much.
        """
        most, taken = self._limits.life_tokens(), join.data_position * self._limits.sequence_length
        if max(join.steps, taken) > most:
            raise self._error(
                f"{join.learner} joins with {join.steps} steps and {join.data_position} sequences behind it; in this"
                f" job it can have trained {most:.0f} tokens"
            )

    def admitted(self, action: Admit) -> None:
        """Note that a process is admitted."""
        known = self._accounts.get(action.learner)
        at = self._clock() if known is None else known.at
        if known is None or known.instance != action.instance:
            self._accounts[action.learner] = _Account(action.instance, action.reported_steps, action.tokens, at)
        else:
            known.away = True

    def reported(self, report: StepReported) -> StepReported:
        """Check and record a step report; returns it with the tokens and the duration of a step that count.

        Raises:
            ClaimError: steps or tokens go back, or there are more tokens than the steps allow.
        """
        learner, step, known = report.learner, report.step, self._accounts[report.learner]
        steps, most = max(0, step - known.step), self._limits.tokens_per_step(report.learner)
        if not known.reported:
            known.uncounted_tokens = max(0, report.tokens - known.tokens - steps * most)
        tokens = report.tokens - known.uncounted_tokens
        if known.reported:
            if step < known.step or tokens < known.tokens:
                raise self._error(
                    f"{learner} reports step {step} with {report.tokens} tokens after step {known.step} with"
                    f" {known.tokens + known.uncounted_tokens}: neither may go back"
                )
            self._check_tokens(learner, steps, tokens - known.tokens)
        now = self._clock()
        seconds = known.believed(report.step_seconds, steps, now) if steps else report.step_seconds
        known.reported, known.step, known.tokens = True, step, tokens
        if steps:
            known.at, known.away = now, False
        return replace(report, tokens=tokens, step_seconds=seconds)

    def check_work(self, work: PushHeader) -> None:
        """Check what can be checked before anything is received.

        Raises:
            ClaimError: there are more tokens than the steps allow, or more steps than a learner makes on a fragment.
        """
        if work.steps > self._limits.bound_steps:
            raise self._error(
                f"{work.learner} pushes {work.steps} steps of fragment {work.fragment}; at {self._limits.bound_steps} a"
                " learner pauses until it receives it"
            )
        self._check_tokens(work.learner, work.steps, work.tokens)

    def _check_tokens(self, learner: str, steps: int, tokens: int) -> None:
        most = self._limits.tokens_per_step(learner)
        if tokens > steps * most:
            raise self._error(f"{learner} claims {tokens} tokens in {steps} steps; a step of its pool has {most}")

    def _error(self, text: str) -> ClaimError:
        self._refused()
        return ClaimError(text)


def tokens_per_step(training: TrainingSpec, pools: Mapping[str, Pool]) -> Callable[[str], int]:
    """Tokens in an inner step of a learner, at most, by its id ``region/pool/index``."""
    return lambda learner: pools[pool_of(learner)].batch_of(training) * training.sequence_length
