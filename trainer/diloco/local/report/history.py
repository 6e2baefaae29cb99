"""A run's history as values: what the summary, the report and the closing table are made from.

Times are seconds of the run (see ``run_clock``); losses are nats a token; tokens are merged tokens of the whole job.
"""

from dataclasses import dataclass
from enum import StrEnum

from diloco.core.time_class import TimeClass
from diloco.local.time_classes import TimeShares


class Life(StrEnum):
    """What a process was doing, in the eyes of supervisor and syncer."""

    STARTING = "starting"
    """Up to its first step: imports, data, loading the model."""
    TRAINING = "training"
    AWAY = "out of reach"
    """It runs, and has no session with the syncer. It may train on."""
    PAUSED = "paused"
    """Stopped with SIGSTOP."""
    DOWN = "down"
    """Ended, and not yet started again."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a process's life."""

    start: float
    end: float
    life: Life


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class LossPoint:
    """A loss at a moment."""

    seconds: float
    tokens: float
    loss: float


@dataclass(frozen=True, slots=True)
class EvaluationPoint:
    """An evaluation of the global model."""

    seconds: float
    tokens: float
    loss: float
    final: bool
    doubted: bool = False
    """It is not to be believed beside what the other learners report, and none of them has confirmed it."""


@dataclass(frozen=True, slots=True)
class MergePoint:
    """One merge."""

    seconds: float
    fragment: int
    version: int
    members: int
    asked: int
    """Learners that were asked for their outer gradient."""
    waited_seconds: float
    """From the round's opening to the merged fragment."""
    versions_behind: int
    """Of the member whose outer gradient was the oldest."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Figures of the whole job at a moment, about one a second."""

    seconds: float
    tokens: float
    goodput: float | None
    bytes_pushed: int
    """Outer gradients received by the syncer, since the start."""
    bytes_pulled: int
    """Merged fragments received by learners, since the start."""


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that happened to a process or a link."""

    seconds: float
    process: str
    text: str


@dataclass(frozen=True, slots=True)
class LearnerHistory:
    """One learner's run."""

    id: str
    steps: int
    tokens: int
    merged_tokens: float
    restarts: int
    blocked_seconds: float
    given_seconds: float
    """From its first join to the end."""
    goodput: float | None
    time: TimeShares
    """What became of its given time."""
    tokens_per_second: float
    """Tokens over the time it trained."""
    losses: tuple[LossPoint, ...] = ()
    """Of inner steps, averaged over about a second each."""
    life: tuple[Span, ...] = ()
    blocked: tuple[Stretch, ...] = ()
    """When its inner loop waited for synchronization."""
    left_out: int = 0
    """Merges made without its outer gradient because that was not to be believed."""
    left_out_reason: str = ""
    """Of the latest of them."""

    @property
    def blocked_fraction(self) -> float:
        """Share of the time it trained in which its inner loop waited for synchronization."""
        trained = sum(span.end - span.start for span in self.life if span.life is Life.TRAINING)
        return min(1.0, self.blocked_seconds / trained) if trained > 0 else 0.0

    @property
    def other_work_fraction(self) -> float:
        """Share of its given time in which it evaluated the model or took snapshots for its own checkpoints."""
        return self.time.get(TimeClass.EVALUATING, 0.0) + self.time.get(TimeClass.CHECKPOINTING, 0.0)


@dataclass(frozen=True, slots=True)
class RunHistory:
    """The whole run."""

    job: str
    seconds: float
    """Length of the run."""
    phase: str
    """Complete, Failed, or where it stood when it was interrupted."""
    phase_reason: str
    budget_tokens: int
    merged_tokens: float
    syncer_steps: int
    parameters: int
    """N of the model."""
    goodput: float | None
    time: TimeShares
    """What became of the learner-seconds that the job was given."""
    learners: tuple[LearnerHistory, ...]
    evaluations: tuple[EvaluationPoint, ...] = ()
    merges: tuple[MergePoint, ...] = ()
    samples: tuple[Sample, ...] = ()
    incidents: tuple[Incident, ...] = ()
    syncer_life: tuple[Span, ...] = ()
    cuts: tuple[tuple[str, Stretch], ...] = ()
    """When the link of a region was cut."""
    quorum: int = 0
    """Learners that had to bring a fragment at the end; 0: not known."""
    quorum_wanted: int = 0
    """``sync.quorum``: more than that where learners were given up."""
    notes: tuple[str, ...] = ()
    """What the reader should know of gaps in the record."""

    @property
    def complete(self) -> bool:
        """The job's budget is merged and its model exported."""
        return self.phase == "Complete"

    @property
    def bytes_pushed(self) -> int:
        """Outer gradients received by the syncer."""
        return self.samples[-1].bytes_pushed if self.samples else 0

    @property
    def bytes_pulled(self) -> int:
        """Merged fragments received by learners."""
        return self.samples[-1].bytes_pulled if self.samples else 0

    @property
    def data_parallel_bytes(self) -> int:
        """What per-step data-parallel training of the same model would have sent for the same inner steps.

        A ring all-reduce of f32 gradients in every step: each of M learners sends 2 (M - 1) / M x 4 N bytes a step.
        """
        count = len(self.learners)
        steps = sum(learner.steps for learner in self.learners)
        return round(steps * 2 * (count - 1) / count * 4 * self.parameters) if count else 0

    @property
    def loss_start(self) -> float | None:
        """Evaluation loss of the first model that was evaluated, of those that are to be believed."""
        return self._believed[0].loss if self._believed else None

    @property
    def loss_end(self) -> float | None:
        """Evaluation loss of the last."""
        return self._believed[-1].loss if self._believed else None

    @property
    def _believed(self) -> list[EvaluationPoint]:
        return [evaluation for evaluation in self.evaluations if not evaluation.doubted]
