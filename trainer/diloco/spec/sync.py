"""How learners are synchronized: fragments, schedule, quorum, grace, merge, outer optimizer, compression, recovery."""

from typing import Annotated, Final, Literal

from pydantic import Field

from diloco.spec import automatic
from diloco.spec.automatic import AUTO
from diloco.spec.base import SpecModel

AUTOMATIC_OVERLAP: Final = 2
"""The paper's tau: an automatic one is never less."""
OVERLAP_LIMIT: Final = 1_000_000


Overlap = Annotated[int | Literal["Auto"], automatic.checked(0, OVERLAP_LIMIT), automatic.schema(0, OVERLAP_LIMIT)]
"""An integer, or Auto."""

Downlink = Literal["F32", "BF16", "Int8"]
"""How merged fragments are encoded for the learners."""


class Grace(SpecModel):
    """How long a round with its quorum waits for learners that are not ready yet (paper, Eq. 3)."""

    safety: float = Field(default=0.5, ge=0, lt=1)
    """gamma: share of the slack (the overlap as time, less what quorum and merge take) to wait at most. 0: none."""
    maximum_seconds: float | None = Field(default=None, ge=0, le=3600)
    """Upper bound, in seconds. Default: about one inner step."""


class OuterOptimizer(SpecModel):
    """SGD with Nesterov momentum on the merged outer gradients. The two values suit each other, so give both."""

    learning_rate: float = Field(gt=0, le=10)
    """Learning rate; 0.7 is DiLoCo's."""
    momentum: float = Field(ge=0, lt=1)
    """Decay of the momentum; 0.9 is DiLoCo's."""


class SyncSpec(SpecModel):
    """Synchronization. The defaults are the paper's; where the paper has none, the description says 'ours'."""

    fragments: int = Field(default=24, ge=1, le=4096)
    """P: number of fragments that the model is cut into, by whole tensors, balanced by size."""
    interval: int = Field(default=24, ge=1, le=1_000_000)
    """H: inner steps between two synchronizations of the same fragment."""
    overlap: Overlap = AUTO
    """tau: inner steps that a fragment may be in flight; this bounds how many fragments are in flight. Auto: as many as
    the measured time of a round needs, at least 2 (the paper's), always below the interval, and never so many that
    learners pause at maxStalenessSteps (ours)."""
    quorum: int = Field(default=1, ge=1, le=10_000)
    """K: learners that must have sent a fragment before it is merged. A learner that waits at maxStalenessSteps and has
    nothing to send counts too. If learners are given up and fewer than K are left, those are enough; to end the job
    instead, set failurePolicy.minimumLearners."""
    grace: Grace = Grace()
    """The wait for learners that are not ready when the quorum is reached."""
    merge: Literal["RDA", "Mean"] = "RDA"
    """RDA: radial-directional averaging, tensor by tensor (embeddings by the mean). Mean: the weighted mean."""
    token_weights: bool = True
    """Weight a learner by tokens x tokens per step (paper). false: all learners alike."""
    anchor: Literal["Received", "Current"] = "Received"
    """What an outer gradient is measured from: the version the learner last received, or the syncer's current."""
    outer_optimizer: OuterOptimizer | None = None
    """The outer optimizer. Default (Auto): chosen when the job begins, by the expected merges of each fragment, which
    are budget / (learners x batch x sequence x interval). Below 50, learning rate 1 and momentum 0 (ours); from 50 on,
    DiLoCo's. Scaling a pool does not change it."""
    compression: Literal["None", "BF16", "Int8", "Int4"] = "BF16"
    """How learners encode outer gradients for the syncer. For the way back see sync.downlink."""
    error_feedback: bool = True
    """With Int8 and Int4: add the encoding's loss to the next outer gradient."""
    downlink: Downlink = "F32"
    """How merged fragments are sent to learners. F32: whole fragments. BF16, Int8: a learner that holds the previous
    version receives the encoded update, and the encoding's loss is added to the next one; others receive the whole
    fragment in f32."""
    max_staleness_steps: int | None = Field(default=None, ge=1, le=10**9)
    """Inner steps that a learner makes without receiving a fragment before it pauses. Default: 4 x interval + overlap
    (ours). interval + overlap together with quorum = all learners is lock-step DiLoCo."""
    max_version_lag: int = Field(default=1, ge=0, le=8)
    """Versions that an outer gradient may be behind when it is merged. An older one is dropped and the learner reloads
    (ours)."""
    lease_seconds: float = Field(default=10.0, gt=0, le=3600)
    """Seconds of silence after which a learner counts as lost; 10 of its own steps if that is longer (ours)."""
    startup_seconds: float = Field(default=600.0, gt=0, le=86_400)
    """The same before a learner's first step, when it may compile for minutes (ours)."""

    @property
    def keeps_residuals(self) -> bool:
        """Whether learners keep what the encoding of their outer gradients has lost."""
        return self.error_feedback and self.compression in ("Int8", "Int4")

    @property
    def least_overlap(self) -> int:
        """``overlap``, or the least that it is where it is Auto."""
        return min(AUTOMATIC_OVERLAP, self.interval - 1) if self.overlap == "Auto" else self.overlap

    @property
    def greatest_overlap(self) -> int:
        """``overlap``, or the most that it is where it is Auto."""
        if self.overlap != "Auto":
            return self.overlap
        return max(self.least_overlap, min(self.interval - 1, self.staleness_bound_steps - self.interval))

    @property
    def staleness_bound_steps(self) -> int:
        """``max_staleness_steps``, or its default."""
        return self.max_staleness_steps or 4 * self.interval + self.least_overlap
