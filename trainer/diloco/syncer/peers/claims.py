"""Checks the steps and tokens that a learner claims against what it can have done.

Weights, progress and the budget are computed from steps and tokens that learners count themselves. A learner that
counts wrongly, by mistake or on purpose, must not outweigh the others or end the job early. The checks use: the tokens
in a step of its pool, the steps it has reported, the step at which it received each fragment, that learners pause at
the staleness bound, the speed of the others of its pool, and the size of the job. A correct learner passes whatever its
link does: a push may arrive before the report of its steps, so it is granted as many steps as it may make on its own
and, beyond them, time for the report to arrive.

A dishonest learner gains those steps once, and what the others' speed allows (`speeds`). Not detected are learners that
cheat together, and a learner that is alone and claims no more than a machine could do.
"""

import asyncio
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import Self

from diloco.core.engine.events import StepReported
from diloco.spec import JobSpec
from diloco.spec.automatic import AUTO
from diloco.spec.names.learner_ids import pool_of
from diloco.spec.placement import Pool
from diloco.spec.training import TrainingSpec
from diloco.syncer.peers.speeds import Allowance, Speeds, StepSeconds
from diloco.wire.messages import PushHeader

LIFE_FACTOR = 100
"""The most that a learner can have trained before this syncer process knew it, as a multiple of the job's budget
(ours)."""


class ClaimError(RuntimeError):
    """A learner claims more than it can have done; one line."""


@dataclass(frozen=True, slots=True)
class ClaimLimits:
    """Limits that follow from the job."""

    tokens_per_step: Callable[[str], int]
    """Tokens in an inner step of a learner, at most, by its id."""
    pools: Container[str]
    """``region/pool`` of every pool; some may be added later."""
    sequence_length: int
    budget_tokens: int
    bound_steps: int
    """Inner steps a learner makes on a fragment at most before it receives it; a push may also be this far ahead of the
    reports."""
    uneven: Callable[[str], bool] = lambda _: False
    """Whether learners of a pool find their batch themselves, so that their steps differ in size."""

    @classmethod
    def of(cls, spec: JobSpec, pools: Mapping[str, Pool]) -> Self:
        """The limits for a job and its pools, to which some may be added later."""
        training = spec.training
        bound_steps = spec.sync.staleness_bound_steps
        return cls(
            *(tokens_per_step(training, pools), pools, training.sequence_length, training.tokens, bound_steps),
            uneven=lambda place: pools[place].batch_size == AUTO,
        )

    def sequences_per_step(self, learner: str) -> int:
        """Sequences in an inner step of a learner."""
        return self.tokens_per_step(learner) // self.sequence_length


class Claims:
    """The claims of all learners. Owned by the event loop."""

    def __init__(self, limits: ClaimLimits, refused: Callable[[], None], clock: Callable[[], float]) -> None:
        """Start without any learner; ``refused`` is called for every claim that is refused."""
        self._limits = limits
        self._refused = refused
        self._clock = clock
        self._accounts: dict[str, _Account] = {}
        self._allowances: dict[str, Allowance] = {}
        self._speeds = Speeds()

    def check_join(self, learner: str, steps: int, data_position: int) -> None:
        """Check the steps that a process claims before it is admitted.

        Raises:
            ClaimError: its learner cannot have done so much work.
        """
        allowance = self._allowances.get(learner)
        if allowance is not None:
            self._check_time(learner, allowance, steps, data_position)
            return
        if pool_of(learner) not in self._limits.pools:
            return  # the engine refuses it
        own, life = self._limits.bound_steps, LIFE_FACTOR * self._limits.budget_tokens
        most_steps = own + life // self._limits.tokens_per_step(learner)
        most_sequences = own * self._limits.sequences_per_step(learner) + life // self._limits.sequence_length
        if steps > most_steps or data_position > most_sequences:
            raise self._error(
                f"{learner} joins with {steps} steps and {data_position} sequences behind it; in this job it can have"
                f" made {most_steps} steps and taken {most_sequences} sequences"
            )

    def admitted(self, learner: str, instance: str, steps: int, data_position: int) -> None:
        """Note that a process is admitted with these counts. One that only lost its link keeps its account."""
        known = self._accounts.get(learner)
        if known is None or known.instance != instance:
            self._accounts[learner] = _Account(instance, steps, StepSeconds(steps, self._clock()))
            self._speeds.begins(learner)
        else:
            known.raise_to(steps)
            known.step_seconds.begins(steps, self._clock())
        allowance = self._allowances.get(learner)
        if allowance is None:
            own = self._limits.bound_steps
            self._allowances[learner] = Allowance(steps, data_position, self._clock(), own)
        else:
            allowance.record(steps, data_position, self._limits.sequences_per_step(learner))

    def reported(self, report: StepReported) -> StepReported:
        """Check and record a step report; returns it with the duration of a step that counts.

        Raises:
            ClaimError: steps or tokens go back, there are more tokens than the steps allow, or more steps or sequences
                than there was time for.
        """
        learner, step, tokens, data_position = report.learner, report.step, report.tokens, report.data_position
        account, allowance = self._accounts[learner], self._allowances[learner]
        if account.reported is not None:
            steps_before, tokens_before = account.reported
            if step < steps_before or tokens < tokens_before:
                raise self._error(
                    f"{learner} reports step {step} with {tokens} tokens after step {steps_before} with"
                    f" {tokens_before}: neither may go back"
                )
            self._check_tokens(learner, step - steps_before, tokens - tokens_before)
        self._check_time(learner, allowance, step, data_position)
        most = LIFE_FACTOR * self._limits.budget_tokens + step * self._limits.tokens_per_step(learner)
        if tokens > most:
            raise self._error(f"{learner} reports {tokens} tokens; in this job it can have trained {most}")
        allowance.record(step, data_position, self._limits.sequences_per_step(learner))
        self._speeds.reported(learner, step, self._clock())
        account.reported = (step, tokens)
        account.raise_to(step)
        return replace(report, step_seconds=account.step_seconds.believed(report.step_seconds, step, self._clock()))

    def received(self, learner: str, fragment: int, version: int) -> None:
        """Note that it trains on a version of a fragment: its count for this fragment restarts."""
        self._accounts[learner].receive(fragment, version)

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

    async def check_steps(self, work: PushHeader, patience_seconds: float) -> None:
        """Wait until the reports cover a push that has been received; usually they already do.

        Raises:
            ClaimError: they do not within ``patience_seconds``.
        """
        account = self._accounts[work.learner]
        try:
            async with asyncio.timeout(patience_seconds):
                while account.begins_at(work) + work.steps > account.steps + self._limits.bound_steps:
                    account.news.clear()
                    await account.news.wait()
        except TimeoutError:
            reported = max(0, account.steps - account.begins_at(work))
            raise self._error(
                f"{work.learner} pushes {work.steps} steps of fragment {work.fragment}, but has reported {reported}"
                f" since it received version {work.base_version}"
            ) from None
        account.push(work)

    def _check_tokens(self, learner: str, steps: int, tokens: int) -> None:
        most = self._limits.tokens_per_step(learner)
        if tokens > steps * most:
            raise self._error(f"{learner} claims {tokens} tokens in {steps} steps; a step of its pool has {most}")

    def _check_time(self, learner: str, allowance: Allowance, steps: int, data_position: int) -> None:
        alike = not self._limits.uneven(pool_of(learner))
        steps_per_second = self._speeds.most_steps_per_second(learner, alike=alike)
        allowance.grow(self._clock(), steps_per_second)
        per_step = self._limits.sequences_per_step(learner)
        problem = allowance.problem(steps, data_position, per_step, steps_per_second)
        if problem:
            raise self._error(f"{learner} claims {problem}")

    def _error(self, text: str) -> ClaimError:
        self._refused()
        return ClaimError(text)


_KEPT_MARKS = 12
"""Marks kept per fragment: more than the versions that ``sync.maxVersionLag`` allows to be behind."""


class _Account:
    """The account of one process. Steps are counted over all processes of its learner.

    A mark (version, step) of a fragment means: it received this version, or a later one, at this step or later.
    """

    def __init__(self, instance: str, steps: int, step_seconds: StepSeconds) -> None:
        self.instance = instance
        self.step_seconds = step_seconds
        self.reported: tuple[int, int] | None = None
        """Steps and tokens of the latest report."""
        self.steps = steps
        """It has made at least this many steps."""
        self.news = asyncio.Event()
        """Set when more steps are known."""
        self._began_at = steps
        self._marks: dict[int, dict[int, int]] = {}

    def raise_to(self, steps: int) -> None:
        self.steps = max(self.steps, steps)
        self.news.set()

    def receive(self, fragment: int, version: int) -> None:
        # Control messages keep their order: what was reported before this message was done before it.
        self._mark(fragment, version, self.steps)

    def push(self, work: PushHeader) -> None:
        # It can hold the next version only after this push was taken, so its steps are not counted twice.
        self._mark(work.fragment, work.base_version + 1, self.begins_at(work) + work.steps)

    def begins_at(self, work: PushHeader) -> int:
        """The earliest step from which this push can count."""
        marks = self._marks.get(work.fragment, {})
        return max((step for version, step in marks.items() if version <= work.base_version), default=self._began_at)

    def _mark(self, fragment: int, version: int, step: int) -> None:
        marks = self._marks.setdefault(fragment, {})
        marks[version] = max(step, marks.get(version, step))
        while len(marks) > _KEPT_MARKS:
            oldest, following = sorted(marks)[:2]
            marks[following] = max(marks[following], marks.pop(oldest))


def tokens_per_step(training: TrainingSpec, pools: Mapping[str, Pool]) -> Callable[[str], int]:
    """Tokens in an inner step of a learner, at most, by its id ``region/pool/index``."""
    return lambda learner: pools[pool_of(learner)].largest_batch(training) * training.sequence_length
