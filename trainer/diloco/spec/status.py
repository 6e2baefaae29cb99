"""The ``status`` of a ``DiLoCoJob`` as models: what the operator reports of a job.

The operator writes it, ``diloco status`` reads it, and the custom resource's schema and the reference page are
generated from it. Numbers with a fraction are text, following the Kubernetes API conventions.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

from diloco.spec.base import REASON
from diloco.spec.placement import DnsLabel, HostName


def _rfc3339(time: datetime) -> str:
    """Whole seconds in UTC, in the format of Kubernetes' own times (metav1.Time)."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Time = Annotated[AwareDatetime, PlainSerializer(_rfc3339, return_type=str, when_used="json")]
"""A time with its zone; as JSON in RFC 3339, in UTC and whole seconds."""

Count = Annotated[int, Field(ge=0)]

Phase = Literal["Pending", "Training", "Suspended", "Complete", "Failed", "Invalid"]
"""Summary of the conditions for display."""

ConditionType = Literal["Ready", "Progressing", "Degraded", "Suspended", "Complete", "Failed"]


class StatusModel(BaseModel):
    """A part of the status. Fields of newer operators that this version does not know are ignored."""

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
    """The condition's type."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    observed_generation: Count = 0
    """The generation of the spec that it describes."""
    last_transition_time: Time
    """When ``status`` last changed."""
    reason: str = Field(pattern=REASON, max_length=1024)
    """Machine-readable reason."""
    message: str = Field(default="", max_length=32_768)
    """Explanation, with the pool and the cause."""


class Progress(StatusModel):
    """How far the training is, as the syncer reports it."""

    step: Count = 0
    """Steps of the syncer."""
    tokens: Count = 0
    """Tokens merged into the global model."""
    budget_tokens: Count = 0
    """``spec.training.tokens``."""
    percent: str = "0%"
    """``tokens`` of ``budgetTokens``."""
    seconds_left: Count | None = None
    """Estimated seconds until the budget is used up. Absent until a rate is known."""
    loss: str | None = None
    """Newest credible evaluation loss of the global model, nats per token. Absent before the first."""
    doubted_loss: str | None = None
    """Newest evaluation loss if it is in doubt: no other learner's loss is close to it, and no learner has confirmed
    it. Absent if it is credible."""
    train_loss: str | None = None
    """Mean training loss of the learners, nats per token."""
    goodput: str | None = None
    """Fraction of the learners' time in which they compute inner steps."""
    merged: str | None = None
    """Fraction of the learners' time whose work is in the global model."""
    time: dict[str, str] | None = None
    """The learners' time by class, as fractions."""
    tokens_per_second: Count = 0
    """Recent rate of merged tokens per second."""
    updated_at: Time | None = None
    """Time of the syncer's report."""


class LearnerCounts(StatusModel):
    """Learners of the whole job."""

    desired: Count = 0
    """Learners the spec asks for; 0 while the job is suspended or finished."""
    ready: Count = 0
    """Learners whose pods are ready."""
    training: Count = 0
    """Learners that train, as the syncer reports; 0 while it does not report."""
    summary: str = "0/0"
    """``training`` of ``desired``; ``?`` while the syncer does not report how many train."""
    quorum: Count | None = None
    """Quorum in force, if only fewer learners than ``spec.sync.quorum`` are left. Absent otherwise."""


class PoolStatus(StatusModel):
    """Learners of one pool."""

    name: DnsLabel
    """The pool."""
    desired: Count = 0
    """Learners the spec asks for; 0 while the job is suspended or finished."""
    ready: Count = 0
    """Learners whose pods are ready."""
    training: Count = 0
    """Learners that train, as the syncer reports."""
    minimum: Count | None = None
    """Minimum of an elastic pool; ``desired`` is its maximum. Absent if the pool is not elastic, and while the job is
    suspended or finished."""
    waiting: Count | None = None
    """Learners of an elastic pool that wait for a node. Absent if none."""
    message: str | None = Field(default=None, max_length=32_768)
    """Why they wait. Absent if none."""
    elsewhere: Count | None = None
    """Learners that run in the region's next pool, because there is no node here. Absent if none."""
    left_out: Count | None = None
    """Learners whose outer gradients merges keep leaving out. Absent if none."""
    given_up: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(default=None, max_length=10_000)
    """Indices of learners that are given up for good. Absent if none."""
    held: Count | None = None
    """Pods held back without a node: of learners given up or in ``excludedIndices``. Absent if none."""
    stateful_set: str = ""
    """The StatefulSet that runs them."""


class RegionStatus(StatusModel):
    """Learners of one region."""

    name: DnsLabel
    """The region."""
    desired: Count = 0
    """Learners the spec asks for; 0 while the job is suspended or finished."""
    training: Count = 0
    """Learners that train, as the syncer reports."""
    cluster: str | None = Field(default=None, max_length=512)
    """The other cluster that it is in, by the Secret with the kubeconfig. Absent at home."""
    reason: str | None = Field(default=None, max_length=1024)
    """Machine-readable reason why that cluster is not ready. Absent if it is."""
    message: str | None = Field(default=None, max_length=32_768)
    """Explanation of ``reason``."""
    since: Time | None = None
    """Start of the time in which that cluster is not ready. Absent while it is."""
    last_seen_time: Time | None = None
    """Last answer of that cluster; ``ready`` of its pools is as of then. Absent while it answers."""
    pools: Annotated[tuple[PoolStatus, ...], Field(max_length=64)] = ()
    """Its pools."""


class LearnerRestarts(StatusModel):
    """How often one learner was restarted."""

    learner: str
    """The learner, as ``region/pool/index``."""
    count: int = Field(ge=1)
    """Restarts."""


MOST_AVOIDED_NODES = 16
"""Most nodes that are avoided at the same time, to bound the size of the object and of pods' preferences (ours)."""
MOST_LEARNERS_OF_NODE = 16
"""Most learners that are named for one of them (ours)."""


class AvoidedNode(StatusModel):
    """A node that is avoided for a while, because different learners kept crashing on it."""

    node: HostName
    """The node."""
    cluster: str | None = Field(default=None, max_length=512)
    """The other cluster that it is in, by the Secret with the kubeconfig. Absent at home."""
    until: Time
    """End of the avoidance."""
    learners: Annotated[
        tuple[Annotated[str, Field(max_length=253)], ...], Field(min_length=1, max_length=MOST_LEARNERS_OF_NODE)
    ]
    """Learners that kept crashing on it, as ``region/pool/index``. New pods of their pools prefer other nodes."""
    message: str | None = Field(default=None, max_length=1024)
    """Why the entry is ignored; empty if it works."""


class SyncerEndpoints(StatusModel):
    """Where the syncer is in the cluster."""

    endpoint: str = ""
    """host:port that learners of this cluster connect to (gRPC, mutual TLS)."""
    external_endpoint: str = Field(default="", max_length=512)
    """host:port that learners of other clusters connect to; empty: there is none."""
    external_endpoint_missing: str = Field(default="", max_length=512)
    """Why it is missing although ``spec.syncer.expose`` asks for it."""
    http_endpoint: str = ""
    """host:port of ``/status``, ``/metrics``, ``/healthz`` and ``/readyz``."""
    epoch: Count = 0
    """Times the syncer has been started on this job's volume."""
    claim_uid: str = Field(default="", max_length=128)
    """uid of the PersistentVolumeClaim that holds the training. The operator uses no other claim."""


class ExportedModel(StatusModel):
    """Where the trained model is."""

    persistent_volume_claim: str
    """The PersistentVolumeClaim that holds it."""
    path: str
    """The file, relative to the root of that volume."""


MOST_RESTARTS_LISTED = 50
"""Most learners that ``restarts`` names, those with most restarts first, to bound the object's size (ours)."""


class JobStatus(StatusModel):
    """What the operator reports. Only the operator writes it."""

    observed_generation: Count = 0
    """The spec's generation that this describes."""
    phase: Phase = "Pending"
    """Summary of the conditions for display; programs read the conditions."""
    reason: str = Field(default="", max_length=1024)
    """Reason of the condition behind ``phase``."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = ()
    """One of each type."""
    progress: Progress | None = None
    """How far the training is. Absent until the syncer has answered once."""
    learners: LearnerCounts = LearnerCounts()
    """Learners of the whole job."""
    regions: Annotated[tuple[RegionStatus, ...], Field(max_length=64)] = ()
    """Learners by region and pool."""
    restarts: Annotated[tuple[LearnerRestarts, ...], Field(max_length=MOST_RESTARTS_LISTED)] = ()
    """Learners that were restarted, those with most restarts first, at most 50."""
    avoided_nodes: Annotated[tuple[AvoidedNode, ...], Field(max_length=MOST_AVOIDED_NODES)] = ()
    """Nodes that are avoided for a while, because different learners kept crashing on them."""
    syncer: SyncerEndpoints | None = None
    """Where the syncer is."""
    outer_optimizer: str | None = Field(default=None, max_length=1024)
    """Learning rate and momentum of the outer optimizer, and the reason. Absent until the syncer has answered once."""
    model: ExportedModel | None = None
    """The trained model, once the job is complete."""
    start_time: Time | None = None
    """When the job was started, or last resumed: what ``activeDeadlineSeconds`` counts from."""
    completion_time: Time | None = None
    """When it became Complete or Failed: what ``ttlSecondsAfterFinished`` counts from."""

    @property
    def elsewhere(self) -> dict[str, int]:
        """Learners that run in the region's next pool, of each pool that has such, by ``REGION/POOL``."""
        pools = [(f"{region.name}/{pool.name}", pool.elsewhere) for region in self.regions for pool in region.pools]
        return {place: learners for place, learners in pools if learners}

    def as_object(self) -> dict[str, Any]:
        """The plain JSON object for the API server; what is None is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
