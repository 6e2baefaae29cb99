"""The ``status`` of a ``DiLoCoJob`` as models: what the operator reports of a job.

The operator writes it, ``diloco status`` reads it, and the custom resource's schema and the reference page are
generated from it. Numbers with a fraction are text, following the Kubernetes API conventions.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

from diloco.spec.base import REASON
from diloco.spec.placement import DnsLabel


def _rfc3339(time: datetime) -> str:
    """Whole seconds in UTC, in the format of Kubernetes' own times (metav1.Time)."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Time = Annotated[AwareDatetime, PlainSerializer(_rfc3339, return_type=str, when_used="json")]
"""A time with its zone; as JSON in RFC 3339, in UTC and whole seconds."""

Count = Annotated[int, Field(ge=0)]

Phase = Literal["Pending", "Training", "Suspended", "Complete", "Failed", "Invalid"]
"""One word for people. Programs read the conditions."""

ConditionType = Literal["Ready", "Progressing", "Degraded", "Suspended", "Complete", "Failed"]


class StatusModel(BaseModel):
    """A part of the status. What a newer operator writes and this version does not know is let pass."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )


class Condition(StatusModel):
    """One condition (metav1.Condition)."""

    type: ConditionType
    """What it is about."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    observed_generation: Count = 0
    """The spec's generation that it was found for."""
    last_transition_time: Time
    """When ``status`` last changed."""
    reason: str = Field(pattern=REASON, max_length=1024)
    """Why, in one word for programs."""
    message: str = Field(default="", max_length=32_768)
    """Why, in a sentence for people: it names the pool and the cause."""


class Progress(StatusModel):
    """How far the training is, by the syncer's account."""

    step: Count = 0
    """Steps of the syncer."""
    tokens: Count = 0
    """Tokens that were merged into the global model."""
    budget_tokens: Count = 0
    """``spec.training.tokens``."""
    percent: str = "0%"
    """``tokens`` of ``budgetTokens``."""
    seconds_left: Count | None = None
    """Estimated seconds until the budget is spent. Absent until there is a rate to go by."""
    loss: str | None = None
    """The newest evaluation loss of the global model that is to be believed, in nats a token. Absent before
    the first."""
    doubted_loss: str | None = None
    """The newest evaluation loss where it is in doubt: no other learner's loss comes near it, and none has confirmed
    it. Absent where the newest one is to be believed."""
    train_loss: str | None = None
    """The learners' mean training loss, in nats a token."""
    goodput: str | None = None
    """Learner-seconds whose tokens were merged, of the learner-seconds the job was given."""
    tokens_per_second: Count = 0
    """Merged tokens a second, lately."""
    updated_at: Time | None = None
    """When this was read from the syncer."""


class LearnerCounts(StatusModel):
    """Learners of the whole job."""

    desired: Count = 0
    """Learners the spec asks for; 0 while the job is suspended or finished."""
    ready: Count = 0
    """Learners whose pods are ready."""
    training: Count = 0
    """Learners that train, by the syncer's account; 0 while it says nothing."""
    summary: str = "0/0"
    """``training`` of ``desired``; ``?`` while the syncer does not say how many train."""
    quorum: Count | None = None
    """Learners that make a quorum at present, where that is fewer than ``spec.sync.quorum`` because no more are left.
    Absent otherwise."""


class PoolStatus(StatusModel):
    """Learners of one pool."""

    name: DnsLabel
    """The pool."""
    desired: Count = 0
    """Learners the spec asks for; 0 while the job is suspended or finished."""
    ready: Count = 0
    """Learners whose pods are ready."""
    training: Count = 0
    """Learners that train, by the syncer's account."""
    left_out: Count | None = None
    """Learners whose work is left out of merges again and again, by the syncer's account. Absent where there
    is none."""
    stateful_set: str = ""
    """The StatefulSet that runs them."""


class RegionStatus(StatusModel):
    """Learners of one region."""

    name: DnsLabel
    """The region."""
    desired: Count = 0
    """Learners the spec asks for; 0 while the job is suspended or finished."""
    training: Count = 0
    """Learners that train, by the syncer's account."""
    pools: Annotated[tuple[PoolStatus, ...], Field(max_length=64)] = ()
    """Its pools."""


class LearnerRestarts(StatusModel):
    """How often one learner was restarted."""

    learner: str
    """The learner, as ``region/pool/index``."""
    count: int = Field(ge=1)
    """Restarts."""


class SyncerEndpoints(StatusModel):
    """Where the syncer is to be found in the cluster."""

    endpoint: str = ""
    """host:port that learners connect to (gRPC, mutual TLS)."""
    http_endpoint: str = ""
    """host:port of ``/status``, ``/metrics``, ``/healthz`` and ``/readyz``."""
    epoch: Count = 0
    """Times the syncer has been started on this job's volume."""
    claim_uid: str = Field(default="", max_length=128)
    """The uid of the PersistentVolumeClaim that the training is on: no other one is taken for it."""


class ExportedModel(StatusModel):
    """Where the trained model is."""

    persistent_volume_claim: str
    """The PersistentVolumeClaim it is on."""
    path: str
    """The file, below the root of that volume."""


MOST_RESTARTS_LISTED = 50
"""Most learners that ``restarts`` names, those with most restarts first, to bound the object's size (ours)."""


class JobStatus(StatusModel):
    """What the operator reports. It is written by nobody else."""

    observed_generation: Count = 0
    """The spec's generation that this describes."""
    phase: Phase = "Pending"
    """One word for people; programs read the conditions."""
    reason: str = Field(default="", max_length=1024)
    """The reason of the condition that ``phase`` comes from."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = ()
    """One of each type."""
    progress: Progress | None = None
    """How far the training is. Absent until the syncer was heard."""
    learners: LearnerCounts = LearnerCounts()
    """Learners of the whole job."""
    regions: Annotated[tuple[RegionStatus, ...], Field(max_length=64)] = ()
    """Learners by region and pool."""
    restarts: Annotated[tuple[LearnerRestarts, ...], Field(max_length=MOST_RESTARTS_LISTED)] = ()
    """Learners that were restarted, those with most restarts first, at most 50."""
    syncer: SyncerEndpoints | None = None
    """Where the syncer is to be found."""
    model: ExportedModel | None = None
    """The trained model, once the job is complete."""
    start_time: Time | None = None
    """When the job was started, or last resumed: what ``activeDeadlineSeconds`` counts from."""
    completion_time: Time | None = None
    """When it became Complete or Failed: what ``ttlSecondsAfterFinished`` counts from."""

    def as_object(self) -> dict[str, Any]:
        """The plain JSON object for the API server; what is None is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
