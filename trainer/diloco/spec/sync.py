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

MergeName = Literal["RDA", "Mean"]
"""Merge rules; `core.merge.rules` has one for each."""

Downlink = Literal["F32", "BF16", "Int8", "TopK"]
"""How merged fragments are encoded for the learners."""


class Grace(SpecModel):
    """How long a round with its quorum waits for learners that are not ready yet (paper, Eq. 3)."""

    safety: float = Field(default=0.5, ge=0, lt=1)
    """gamma: fraction of the spare overlap time (overlap less quorum and merge) to wait for late learners."""
    maximum_seconds: int | None = Field(default=None, ge=0, le=3600)
    """Seconds to wait at most. Default: about one inner step."""


class OuterOptimizer(SpecModel):
    """SGD with Nesterov momentum on the merged outer gradients. The two values suit each other, so give both."""

    learning_rate: float = Field(gt=0, le=10)
    """Learning rate; 0.7 is DiLoCo's."""
    momentum: float = Field(ge=0, lt=1)
    """Decay of the momentum; 0.9 is DiLoCo's."""


class SyncSpec(SpecModel):
    """Synchronization. The defaults are the paper's; where the paper has none, the description says 'ours'."""

    fragments: int = Field(default=24, ge=1, le=4096)
    """P: number of fragments of the model. Balanced by size: large embeddings are split by rows."""
    interval: int = Field(default=24, ge=1, le=1_000_000)
    """H: inner steps between two synchronizations of a fragment."""
    overlap: Overlap = AUTO
    """tau: inner steps that a learner may train while a fragment is being merged. Auto: as many as a round is measured
    to need, at least 2 (the paper's), below the interval and maxStalenessSteps (ours)."""
    quorum: int = Field(default=1, ge=1, le=10_000)
    """K: learners that must send a fragment before it is merged, or all that are left without those that were given up,
    are in quarantine or leave requests unanswered. One that waits at maxStalenessSteps counts too."""
    grace: Grace = Grace()
    """How long to wait for late learners after the quorum is reached."""
    merge: MergeName = "RDA"
    """RDA: radial-directional averaging, tensor by tensor (embeddings and split output layers by the mean). Mean: the
    weighted mean."""
    token_weights: bool = True
    """true: weigh a learner by tokens x tokens per step (paper). false: weigh all alike."""
    anchor: Literal["Received", "Current"] = "Received"
    """The version that an outer gradient is measured from: the one that the learner received last, or the syncer's."""
    outer_optimizer: OuterOptimizer | None = None
    """The outer optimizer. Default, chosen once, when the job begins: learning rate 1 and momentum 0 if the interval is
    below 24 or the compression is TopK. Else by the expected merges of each fragment, budget / (learners x batch x
    sequence x interval): the same up to 33 merges, 0.7 and 0.6 up to 133, DiLoCo's 0.7 and 0.9 from 134 on (ours)."""
    average_last: float = Field(default=0.06, ge=0, le=0.5)
    """The final model is the mean of each fragment's versions from this last share of the budget (ours). 0: it is the
    last version."""
    compression: Literal["None", "BF16", "Int8", "Int4", "TopK"] = "BF16"
    """How learners encode outer gradients for the syncer. TopK sends the largest values only, in 2 bits each, and needs
    error feedback. For the way back see sync.downlink."""
    density: float | None = Field(default=None, ge=1 / 128, le=1 / 4)
    """With TopK: share of the values that are sent, of each 4096 in a row the largest. Default: 1/64 (SparseLoCo's)."""
    error_feedback: bool = True
    """With Int8, Int4 and TopK: add what the encoding lost to the next outer gradient."""
    downlink: Downlink = "F32"
    """How the syncer encodes merged fragments. F32: whole fragments. BF16, Int8, TopK: the update, with error
    feedback. TopK sends four times sync.density of the values (ours), at most a quarter, and needs TopK in
    sync.compression too."""
    max_staleness_steps: int | None = Field(default=None, ge=1, le=10**9)
    """Inner steps without an update after which a learner pauses. Default: 4 x interval + overlap (ours). interval +
    overlap, with quorum = all learners, is lock-step DiLoCo."""
    max_version_lag: int = Field(default=1, ge=0, le=8)
    """Versions that a merged outer gradient may be behind. An older one is dropped, and its learner reloads (ours)."""
    lease_seconds: int = Field(default=10, ge=1, le=3600)
    """Seconds of silence after which a learner counts as lost; at least 10 of its own steps (ours)."""
    startup_seconds: int = Field(default=600, ge=1, le=86_400)
    """Seconds of silence until a learner's first step, when it may compile (ours)."""

    @property
    def alive_seconds(self) -> float:
        """The longest that a learner says nothing: a quarter of the lease, and 5 s at most (ours)."""
        return min(5.0, self.lease_seconds / 4)

    @property
    def keeps_residuals(self) -> bool:
        """Whether learners keep what the encoding of their outer gradients has lost."""
        return self.error_feedback and self.compression in ("Int8", "Int4", "TopK")

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
