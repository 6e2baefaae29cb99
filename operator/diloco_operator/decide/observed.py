"""The input of `reconcile`: what was last observed, as plain values.

`observe` fills these in from caches, from lists and from the syncer's ``/status``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

from diloco.spec.syncer_status import Phase

Object = dict[str, Any]
"""A Kubernetes object as the API server hands it out: plain JSON values."""


class ChildKey(NamedTuple):
    """One object in the job's namespace."""

    kind: str
    """For example ``StatefulSet``."""
    name: str

    @classmethod
    def of(cls, item: Object) -> Self:
        """What `item` is found by."""
        return cls(item["kind"], item["metadata"]["name"])


@dataclass(frozen=True, slots=True)
class PodObserved:
    """One of the job's pods."""

    pod: Object
    events: tuple[Object, ...] = ()
    """Its warning events, in any order (core/v1 Event)."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What a closer look at an unhealthy job brought: lists, not watches."""

    pods: tuple[PodObserved, ...] = ()
    """Every pod with the job's labels, the syncer's among them."""
    events: Mapping[ChildKey, tuple[Object, ...]] = field(default_factory=dict)
    """Warning events about children that are no pods: a claim that is not provisioned, a set that may not create
    pods."""


class LearnerReport(BaseModel):
    """One learner, as the syncer tells of it."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    id: str
    """region/pool/index."""
    state: str
    """A `LearnerState`. Others may come with newer trainers."""
    restarts: int = 0
    """Times a new process took its place."""
    left_out_now: str = ""
    """Why it is being left out of merges again and again, in words that stay; empty: it is not, or the syncer is of a
    version that does not say."""


class EvaluationReport(BaseModel):
    """One evaluation of the global model."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    loss: float | None = None
    """Nats a token; None where it was not a number."""
    doubted: bool = False
    """It is not to be believed, and no other learner has confirmed it."""


class CheckpointReport(BaseModel):
    """The syncer's checkpoints."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    newest: str = ""
    """Name of the newest one; empty: none yet."""
    problem: str = ""
    """Why the latest write failed; empty if it did not."""


class LinksReport(BaseModel):
    """Whether overlap, interval and links go together, as the syncer measures it."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    kind: str
    """Fits, or the misfit. Others may come with newer trainers."""
    reason: str = ""
    """In words that stay the same for as long as the kind does."""
    remedies: tuple[str, ...] = ()
    """What would do, each alone."""


class SyncerStatusView(BaseModel):
    """What the operator reads of the syncer's ``/status`` (`diloco.spec.syncer_status.SyncerStatus`).

    Other fields are ignored, and most of these may be missing: trainers of other versions answer it too.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    job: str
    """The job's name: an answer for another one is not taken."""
    epoch: int
    """Life of the syncer process, counted from 1."""
    phase: Phase
    phase_reason: str = ""
    model_exported: bool = False
    """The finished model is on the syncer's volume."""
    syncer_step: int = 0
    """Merges done."""
    merged_tokens: float = 0.0
    budget_tokens: int = 0
    tokens_per_second: float = 0.0
    """Merged tokens, over the last half minute."""
    seconds_left: float | None = None
    """At that rate; None while there is none."""
    train_loss: float | None = None
    """Nats a token, of the learners that train."""
    eval_loss: float | None = None
    """Nats a token, of the latest evaluation of the global model that is to be believed."""
    evaluations: tuple[EvaluationReport, ...] = ()
    """The latest is the last."""
    goodput: float | None = None
    """0 to 1."""
    checkpoint: CheckpointReport = Field(default_factory=CheckpointReport)
    tape_problem: str = ""
    """Why the tape is incomplete or waits for the disk; empty if it does not."""
    learners: tuple[LearnerReport, ...] = ()
    quorum: int = 0
    """Learners that make a quorum at present; 0 from syncers that do not say."""
    links: LinksReport | None = None
    """None from syncers that have not measured them yet, or do not."""


@dataclass(frozen=True, slots=True)
class SyncerAway:
    """The syncer was asked and did not answer; where it answered lately, not once but several times in a row."""

    reason: str
    """In words that stay the same while the cause does: they end up in a condition."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything `reconcile` looks at besides the job itself."""

    children: Mapping[ChildKey, Object]
    """Live objects with the job's labels and an owner reference to this job's uid."""
    foreign: frozenset[ChildKey] = frozenset()
    """Objects with the job's labels or with names that the job wants, which belong to somebody else."""
    looked: Looked | None = None
    """None: nobody looked, because nothing asked for it (`Plan.look_closer`), or the look failed."""
    look_failed: bool = False
    """The API server did not answer a closer look: this time the job is decided upon without one."""
    syncer: SyncerStatusView | SyncerAway | None = None
    """None: not asked, because no syncer is wanted."""
    refused: Mapping[ChildKey, str] = field(default_factory=dict)
    """What the API server said to the latest try to apply an object of these names, where it refused for good (400,
    403, 409, 422). Need not be kept over a restart of the operator: the same try brings the same answer."""

    @property
    def may_look(self) -> bool:
        """Nobody has looked closer yet, or tried to."""
        return self.looked is None and not self.look_failed
