"""The part of the syncer's ``/status`` that its engine knows: phase, learners, evaluations, recoveries.

What the engine keeps as well is a plain dataclass.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import fsum
from typing import Annotated, Final, Protocol

from pydantic import BaseModel, ConfigDict, PlainSerializer

from diloco.spec.names.learner_ids import pool_of


class Phase(StrEnum):
    """The phase of the training. The operator's phase of a job is ``spec.status.Phase``."""

    WAITING = "Waiting"
    """No learner has begun."""
    TRAINING = "Training"
    EVALUATING = "Evaluating"
    """The budget is merged; rounds under way end and the final model is evaluated."""
    COMPLETE = "Complete"
    FAILED = "Failed"


class LearnerState(StrEnum):
    """A learner's state."""

    ABSENT = "Absent"
    """No session: not started, lost, or left."""
    LOADING = "Loading"
    """Admitted, and still receiving the model."""
    TRAINING = "Training"
    """It makes steps."""
    STALLED = "Stalled"
    """Its connection is alive, but it makes no steps, and does not participate until it does."""
    QUARANTINED = "Quarantined"
    """It has diverged again after a reset: it is neither asked nor counted for a while."""
    UNPLANNED = "Unplanned"
    """It has the model and makes steps. It is neither asked nor counted until the manifest plans it."""
    GIVEN_UP = "GivenUp"
    """It failed more often than the failure policy allows."""


OVER: Final = (Phase.COMPLETE, Phase.FAILED)
"""Phases of a job that is over."""
PRESENT: Final = (
    *(LearnerState.LOADING, LearnerState.TRAINING, LearnerState.STALLED),
    *(LearnerState.QUARANTINED, LearnerState.UNPLANNED),
)
"""States of a learner with a session."""
TOO_FAST: Final = 0.75
"""A learner is named if less than this share of its steps counts beside others that train."""


class _Compared(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def counted_share(self) -> float: ...


def too_fast(learners: Iterable[_Compared]) -> list[str]:
    """Of these learners, the ids of those that report far more steps than count beside others that train now.

    Others are those of the same pool, or of all pools if it is alone in its own. What others did before they left says
    nothing about an honest learner: it may have the machine that they shared to itself.
    """
    everybody = list(learners)
    training = Counter(pool_of(one.id) for one in everybody if one.state == LearnerState.TRAINING)
    sizes = Counter(pool_of(one.id) for one in everybody)
    found = []
    for one in everybody:
        if one.counted_share >= TOO_FAST:
            continue
        pool = pool_of(one.id)
        others = training[pool] if sizes[pool] > 1 else training.total()
        if others > (one.state == LearnerState.TRAINING):
            found.append(one.id)
    return sorted(found)


def _milliseconds(seconds: dict[str, float]) -> dict[str, float]:
    return {name: rounded for name, one in seconds.items() if (rounded := round(one, 3))}


TimeSeconds = Annotated[dict[str, float], PlainSerializer(_milliseconds, when_used="json")]
"""Seconds by class (``core.account.time_class``). In JSON without those that are 0 and in milliseconds, as a job may
have thousands of learners."""


class StatusPart(BaseModel):
    """Part of a status."""

    model_config = ConfigDict(frozen=True)


class LearnerStatus(StatusPart):
    """One learner."""

    id: str
    """region/pool/index."""
    state: str
    """A `LearnerState`. Later syncers may have others."""
    incarnation: int = 0
    """Number of its latest admission; 0: never admitted."""
    steps: int
    """Inner steps so far, over all its processes."""
    tokens: int
    """Tokens so far, over all its processes."""
    merged_tokens: float
    """Number of these that reached the global model."""
    tokens_per_second: float = 0.0
    """Over the last half minute, as the syncer measures it."""
    step_seconds: float | None = None
    """Moving average."""
    answer_seconds: float | None = None
    """Its usual time from the request to its complete outer gradient."""
    lead_steps: int = 0
    """Inner steps before a launch at which it is asked."""
    missed: bool = False
    """It did not answer when it was last waited for, and has not answered since."""
    versions_behind: int = 0
    """Merges, over all fragments, that it has not applied yet."""
    pushed_bytes: int = 0
    """Of its outer gradients."""
    restarts: int
    """Number of times a new process took its place."""
    loss: float | None = None
    """Loss of its latest inner step, in the task's unit; None if it was not a number."""
    last_heard_seconds: float | None = None
    """Time since its last message; None if there was none."""
    left: bool = False
    """Its latest session ended with its leave, and not because it was lost."""
    loading_seconds: float | None = None
    """How long it has been loading the model; None: it is not."""
    time_seconds: TimeSeconds = {}
    """How the time it was given was used: it counts from its first join on, for as long as it is planned or in.
    Absences count only if its pool has fewer learners than it must have."""
    left_out: int = 0
    """Merges made without its outer gradient because that was not credible, since the syncer started."""
    left_out_reason: str = ""
    """Reason of the latest of them."""
    left_out_now: str = ""
    """Why it is repeatedly left out of merges, in words that stay the same while it lasts; empty: it is not."""
    unanswered_now: str = ""
    """Why neither the pace nor, if rounds have waited for it, the quorum counts it: it leaves requests unanswered.
    Empty: it answers."""
    counted_share: float = 1.0
    """The share of its steps that counts; below 1: it reports more than the speed of the others shows to be possible.
    Below `TOO_FAST` it is named."""
    resets: int = 0
    """Times it had to start over from the global model because it had diverged."""
    diverged_reason: str = ""
    """Why it was last reset or quarantined; empty: it was not, or has been merged often enough since."""
    agreement: float | None = None
    """Cosine between its outer gradients and the others' in a merge, -1 to 1, moving average; None: it was never merged
    with others."""
    against: bool = False
    """Its outer gradients have pointed against the others' (cosine below 0) for many merges in a row, more than most
    others' have."""
    quarantine_seconds: float | None = None
    """Time until its quarantine is over; None: it is in none."""

    @property
    def allotted_seconds(self) -> float:
        """The time it was given."""
        return fsum(self.time_seconds.values())


@dataclass(frozen=True, slots=True)
class EvaluationStatus:
    """One evaluation of the global model."""

    tokens: int
    """Merged tokens at that time."""
    loss: float | None
    """In the task's unit, on held-out data; None if it was not a number: the model has diverged."""
    seconds: float
    """Time since the first learner joined."""
    final: bool
    """Whether it is of the exported model."""
    doubted: bool = False
    """It is not credible beside what the other learners report, and none of them has confirmed it."""
    learner: str = ""
    """Who made it."""


@dataclass(frozen=True, slots=True)
class RecoveryStatus:
    """A learner that was lost and whose work has been merged again. Times are seconds."""

    learner: str
    restarted: bool
    """A new process took over; False: the same one returned."""
    lost_seconds: float
    """When it was lost, since the first learner joined."""
    down: float
    """From the loss until the session that led to the merge began."""
    loading: float
    """From then until it had the model."""
    stepping: float
    """From then until its first step was reported."""
    merging: float
    """From then until an outer gradient of it was merged."""

    @property
    def seconds(self) -> float:
        """From the loss to the merge."""
        return self.down + self.loading + self.stepping + self.merging


@dataclass(frozen=True, slots=True)
class PartStatus:
    """How long one part of the recoveries took."""

    part: str
    """down, loading, stepping or merging."""
    total_seconds: float
    counts: tuple[int, ...]
    """Recoveries by bucket, whose upper bounds are ``RecoveriesStatus.bounds``; the last bucket has none."""


@dataclass(frozen=True, slots=True)
class RecoveriesStatus:
    """Recoveries of learners since this start of the syncer."""

    count: int = 0
    latest: tuple[RecoveryStatus, ...] = ()
    """The latest, oldest first."""
    bounds: tuple[float, ...] = ()
    parts: tuple[PartStatus, ...] = ()


class EngineStatus(StatusPart):
    """A job, as its engine sees it."""

    phase: Phase
    phase_reason: str
    syncer_step: int
    """Number of merges done."""
    versions: tuple[int, ...] = ()
    """By fragment."""
    merged_tokens: float
    budget_tokens: int
    train_loss: float | None = None
    """Mean of the latest losses of the learners that train."""
    eval_loss: float | None
    """Loss of the latest credible evaluation."""
    evaluations: tuple[EvaluationStatus, ...]
    goodput: float | None
    """Learner-seconds of inner steps, merged or not, over learner-seconds the job was allotted. None until time was
    given. Times in which the syncer was away do not count."""
    merged: float | None
    """Learner-seconds of inner steps that are in the global model, over the same."""
    time_seconds: TimeSeconds = {}
    """How the learner-seconds of the job were used."""
    elapsed_seconds: float
    """Time since the first learner joined, without the times the syncer was away."""
    rounds_in_flight: int = 0
    fragments_allowed: int = 0
    """Fragments that may currently be in flight."""
    merge_seconds: float | None = None
    """Recent duration of one merge."""
    round_seconds: float | None = None
    """The same from the launch of a round until as many learners as the quorum train on its result."""
    learners: tuple[LearnerStatus, ...]
    """Learners that are planned or admitted."""
    inner_steps: int = 0
    """Of all learners ever, including those that a scaled pool no longer has."""
    trained_tokens: int = 0
    """Tokens of these steps."""
    quorum: int = 0
    """Learners that must currently have sent a fragment before it is merged."""
    quorum_wanted: int = 0
    """``sync.quorum``: more than ``quorum`` if too few are left that are not given up, in quarantine or unanswering."""
    recoveries: RecoveriesStatus = RecoveriesStatus()

    @property
    def finished(self) -> bool:
        """Whether the job is over."""
        return self.phase in OVER

    @property
    def complete(self) -> bool:
        """Whether it is over and all is well."""
        return self.phase == Phase.COMPLETE
