"""The input of `reconcile`: what was last observed, as plain values.

`observe` fills these in from caches, from lists and from the syncer's ``/status``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

from diloco.spec.status.engine import PRESENT, Phase
from diloco_operator.cluster_state import ClusterSeen
from diloco_operator.manifests.inputs import Placed

Object = dict[str, Any]
"""A Kubernetes object as the API server hands it out: plain JSON values."""


class ChildKey(NamedTuple):
    """One object of a job: in the job's namespace at home, or in the job's namespace of another cluster."""

    kind: str
    """For example ``StatefulSet``."""
    name: str
    cluster: str = ""
    """Empty: home, the cluster that the operator runs in. Otherwise its name (`cluster_name`)."""

    @classmethod
    def of(cls, item: Object, cluster: str = "") -> Self:
        """The key of `item`, which is in `cluster`."""
        return cls(item["kind"], item["metadata"]["name"], cluster)

    @classmethod
    def of_placed(cls, placed: Placed) -> Self:
        """The key of a wanted object."""
        return cls.of(placed.body, placed.cluster)

    def __str__(self) -> str:
        return f"{self.kind} {self.name} in cluster {self.cluster}" if self.cluster else f"{self.kind} {self.name}"


class Applied(NamedTuple):
    """An object as it was applied last."""

    wanted: str
    """Digest of what was applied."""
    made: str
    """Digest of what the API server made of it."""


@dataclass(frozen=True, slots=True)
class PodObserved:
    """One of the job's pods."""

    pod: Object
    events: tuple[Object, ...] = ()
    """Its warning events, in any order (core/v1 Event)."""
    cluster: str = ""
    """As in `ChildKey`."""


@dataclass(frozen=True, slots=True)
class PodList:
    """The pods and events of an unhealthy job, from lists and not from watches."""

    pods: tuple[PodObserved, ...] = ()
    """Every pod with the job's labels, the syncer's among them."""
    events: Mapping[ChildKey, tuple[Object, ...]] = field(default_factory=dict)
    """Warning events about what is no pod: a claim that is not provisioned, the syncer's or one that a pod without a
    node mounts; a set that may not create pods."""
    claims: Mapping[ChildKey, tuple[str, ...]] = field(default_factory=dict)
    """Access modes of the claims that pods which are being deleted mount, the syncer's and the users'. One that is
    missing could not be read."""
    egress: Mapping[str, tuple[Object, ...]] = field(default_factory=dict)
    """The NetworkPolicies that are about egress, by cluster, where a learner runs and has not joined."""


class Flavor(NamedTuple):
    """A ResourceFlavor of Kueue."""

    node_labels: Mapping[str, str]
    """Labels of its nodes."""
    tolerations: tuple[Object, ...]


@dataclass(frozen=True, slots=True)
class KueueSeen:
    """What was read of Kueue for one job, besides its Workloads."""

    missing: str = ""
    """Why the operator has no Kueue to ask; empty: it has."""
    problem: str = ""
    """Why something that the job needs cannot be read; empty: it could."""
    flavors: Mapping[str, Flavor] = field(default_factory=dict)
    """Those that the job's Workloads were given, by name, as far as they could be read."""
    priority: int | None = None
    """Of the queue's WorkloadPriorityClass; None: it names none, or it could not be read."""


class _Report(BaseModel):
    """A part of what the syncer reports. JSON has no numbers that are not finite, so such an answer is rejected."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class LearnerReport(_Report):
    """One learner in the syncer's ``/status``: the fields of the syncer's ``LearnerStatus`` that are used."""

    id: str
    """region/pool/index."""
    state: str
    """A `LearnerState`. Newer trainers may send others."""
    incarnation: int = 0
    """Number of its latest admission; 0: never admitted since the syncer started."""
    restarts: int = 0
    """Times a new process took its place."""
    resets: int = 0
    """Times it started over from the global model because it had diverged."""
    diverged_reason: str = ""
    """Why it was last reset or quarantined; empty: it was not, or the syncer is of a version that does not report
    it."""
    last_heard_seconds: float | None = None
    """Time since its last message; None if there was none since the syncer started."""
    counted_share: float = 1.0
    """The share of its steps that counts, 0 to 1."""
    against: bool = False
    """Its outer gradients have pointed against the others' for many merges in a row."""
    left: bool = False
    """Its latest session ended with its leave, and not because it was lost."""
    loading_seconds: float | None = None
    """How long it has been loading the model; None: it is not."""
    unanswered_now: str = ""
    """How it leaves requests unanswered; empty: it answers, or the syncer is of a version that does not report it."""
    left_out_now: str = ""
    """Why merges repeatedly leave it out, in a text that stays the same while it lasts; empty: they do not, or the
    syncer is of a version that does not report it."""


class EvaluationReport(_Report):
    """One evaluation of the global model."""

    loss: float | None = None
    """Nats a token; None where it was not a number."""
    doubted: bool = False
    """It is not credible, and no other learner has confirmed it."""


class CheckpointReport(_Report):
    """The syncer's checkpoints."""

    newest: str = ""
    """Name of the newest one; empty: none yet."""
    age_seconds: float | None = None
    """Time since it was written, or since this start of the syncer if that is later; None: there is none."""
    problem: str = ""
    """Why the latest write failed; empty if it did not."""


class BackupReport(_Report):
    """The syncer's backups."""

    age_seconds: float | None = None
    """Time since the newest one was complete; None: this start of the syncer has completed none."""
    problem: str = ""
    """Why the latest upload failed or is stuck; empty if neither."""


class LinkReport(_Report):
    """How much of a link's capacity the exchange of fragments takes."""

    name: str = ""
    """The pool behind it, or one learner."""
    up: float = 0.0
    """Share of its capacity, which can be above 1."""
    down: float = 0.0


class LinksReport(_Report):
    """Whether overlap, interval and links fit together, as the syncer measures it."""

    kind: str
    """Fits, or the misfit. Newer trainers may send others."""
    reason: str = ""
    """A text that stays the same for as long as the kind does."""
    remedies: tuple[str, ...] = ()
    """Remedies, each enough alone."""
    used: tuple[LinkReport, ...] = ()
    """By link."""


class BytesReport(_Report):
    """Bytes in one direction, by kind."""

    bulk: int = 0
    control: int = 0
    again: int = 0


class RegionBytesReport(_Report):
    """Bytes between the learners of a region and the syncer, over the whole job."""

    region: str = ""
    up: BytesReport = BytesReport()
    down: BytesReport = BytesReport()


class SyncerStatusView(_Report):
    """What the operator reads of the syncer's ``/status`` (`diloco.spec.status.syncer.SyncerStatus`).

    Other fields are ignored, and most of these may be missing: trainers of other versions answer it too.
    """

    job: str
    """The job's name: an answer for another job is rejected."""
    epoch: int
    """Number of this start of the syncer, counted from 1."""
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
    """Nats a token, of the latest credible evaluation of the global model."""
    evaluations: tuple[EvaluationReport, ...] = ()
    """The latest is the last."""
    merged: float | None = None
    """0 to 1."""
    goodput: float | None = None
    """0 to 1."""
    time_seconds: dict[str, float] = {}
    """Learner-seconds by class."""
    checkpoint: CheckpointReport = Field(default_factory=CheckpointReport)
    backup: BackupReport | None = None
    """None: there are none, or the syncer is of a version that makes none."""
    tape_problem: str = ""
    """Why the tape is incomplete or waits for the disk; empty if it does not."""
    learners: tuple[LearnerReport, ...] = ()
    quorum: int = 0
    """Learners that make a quorum at present; 0 from syncers that do not say."""
    outer_optimizer: str = ""
    """Learning rate and momentum, and why these."""
    computing: str = ""
    """What learners compute in and on, in words; empty from syncers that do not know it."""
    links: LinksReport | None = None
    """None from syncers that have not measured them yet, or do not."""
    bytes_by_region: tuple[RegionBytesReport, ...] = ()


class Sessions(NamedTuple):
    """Which learners had a session with one process of the syncer."""

    epoch: int
    """Of that process."""
    incarnations: Mapping[str, int]
    """By learner: the number of its latest admission, negative if that session is over."""

    @classmethod
    def of(cls, view: SyncerStatusView) -> Self:
        """Those that the syncer reports."""
        seen = {one.id: one.incarnation if one.state in PRESENT else -one.incarnation for one in view.learners}
        return cls(view.epoch, seen)


@dataclass(frozen=True, slots=True)
class SyncerAway:
    """The syncer did not answer a request; if it had answered before, several requests in a row."""

    reason: str
    """A text that stays the same while the cause does, because it becomes part of a condition."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything `reconcile` looks at besides the job itself."""

    children: Mapping[ChildKey, Object]
    """Live objects with the job's labels that are this job's: at home they have an owner reference to its uid,
    elsewhere labels with its uid and the home's id. Those of a cluster that does not answer are as last seen."""
    foreign: frozenset[ChildKey] = frozenset()
    """Objects with the job's labels, or with names that the job needs, that belong to other owners."""
    looked: PodList | None = None
    """None: the pods were not listed, because no decision needs them (`reconcile.needs_pods`) or the list failed."""
    look_failed: bool = False
    """They are needed, and listing them failed."""
    syncer: SyncerStatusView | SyncerAway | None = None
    """None: there is no syncer to ask."""
    applied: Mapping[ChildKey, Applied] = field(default_factory=dict)
    """What this process has applied, and what the API server made of it. It need not survive a restart."""
    refused: Mapping[ChildKey, str] = field(default_factory=dict)
    """Why the API server has refused to apply objects, by their keys, if a retry cannot help (400, 403, 409, 422). It
    need not survive a restart of the operator, because the same request gets the same answer."""
    reverted: Mapping[ChildKey, str] = field(default_factory=dict)
    """How something keeps changing objects that the operator therefore repairs only now and then, and who it is."""
    pods_forbidden: frozenset[str] = frozenset()
    """Clusters whose API server has refused to delete a pod; the empty name is home."""
    clusters: Mapping[str, ClusterSeen] = field(default_factory=dict)
    """The other clusters that the job names, by name (`cluster_name`). One that is missing has not
    been contacted yet."""
    retained: Object | None = None
    """Among ``foreign``: the claim that an earlier job of this name has retained."""
    kueue: KueueSeen | None = None
    """None: the job has no queue."""
    sessions_told: Sessions | None = None
    """The learners' sessions up to which events were recorded; None: none are due yet. It need not survive a restart of
    the operator."""
