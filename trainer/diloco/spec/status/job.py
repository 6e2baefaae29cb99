"""The ``status`` of a ``DiLoCoJob`` as models: what the operator reports of a job.

The operator writes it, ``diloco status`` reads it, and the custom resource's schema and the reference page are
generated from it. Numbers with a fraction are text, following the Kubernetes API conventions.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

from diloco.spec.base import REASON, SET, MapBy


def _rfc3339(time: datetime) -> str:
    """Whole seconds in UTC, in the format of Kubernetes' own times (metav1.Time)."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Time = Annotated[AwareDatetime, PlainSerializer(_rfc3339, return_type=str, when_used="json")]
"""A time with its zone; as JSON in RFC 3339, in UTC and whole seconds."""

Phase = Literal["Pending", "Training", "Suspending", "Suspended", "Complete", "Failed", "Invalid"]
"""The phases that this version writes. A newer operator may write others."""

ConditionType = Literal["Ready", "Progressing", "Degraded", "Suspended", "Complete", "Failed"]
"""The types of conditions that this version writes, likewise."""


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

    type: str = Field(max_length=316)
    """What the condition is about."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    observed_generation: int = 0
    """The generation of the spec that it describes."""
    last_transition_time: Time
    """When ``status`` last changed."""
    reason: str = Field(pattern=REASON, max_length=1024)
    """Machine-readable reason."""
    message: str = Field(max_length=32_768)
    """Explanation, with the pool and the cause."""


class Progress(StatusModel):
    """How far the training is, as the syncer reports it."""

    step: int = 0
    """Steps of the syncer."""
    tokens: int = 0
    """Tokens merged into the global model."""
    budget_tokens: int = 0
    """``spec.training.tokens``."""
    percent: str = "0%"
    """``tokens`` of ``budgetTokens``."""
    seconds_left: int | None = None
    """Estimated seconds until the budget is used up. Absent until a rate is known."""
    loss: str | None = None
    """Newest credible evaluation loss of the global model, in the task's unit. Absent before the first."""
    doubted_loss: str | None = None
    """Newest evaluation loss if no other learner's is close to it and none has confirmed it. Absent if it is
    credible."""
    train_loss: str | None = None
    """Mean training loss of the learners, in the task's unit."""
    goodput: str | None = None
    """Fraction of the learners' time in which they compute inner steps."""
    merged: str | None = None
    """Fraction of the learners' time whose work is in the global model."""
    time: dict[str, str] | None = None
    """The learners' time by class, as fractions."""
    tokens_per_second: int = 0
    """Recent rate of merged tokens per second."""
    updated_at: Time | None = None
    """Time of the syncer's report."""


class LearnerCounts(StatusModel):
    """Learners of the whole job."""

    desired: int = 0
    """Learners the spec asks for; 0 while the job is suspended or finished."""
    ready: int = 0
    """Learners whose pods are ready."""
    training: int = 0
    """Learners that train, as the syncer reports; 0 while it does not report."""
    summary: str = "0/0"
    """``training`` of ``desired``; ``?`` while the syncer does not report how many train."""
    quorum: int | None = None
    """Quorum in force, if only fewer learners than ``spec.sync.quorum`` are left. Absent otherwise."""


class UnplacedLearner(StatusModel):
    """A learner of several nodes that found only some of them."""

    index: int = Field(ge=0)
    """Its index."""
    times: int = Field(default=1, ge=1)
    """How often in a row."""
    until: Time | None = None
    """Its pods are held back until then. Absent while it is tried again."""


class PoolStatus(StatusModel):
    """Learners of one pool."""

    name: str
    """The pool."""
    desired: int = 0
    """Learners the spec asks for; 0 while the job is suspended or finished."""
    ready: int = 0
    """Learners whose pods are ready."""
    ready_pods: int | None = None
    """Pods that are ready. Absent if learners have one each."""
    training: int = 0
    """Learners that train, as the syncer reports."""
    minimum: int | None = None
    """Minimum of an elastic pool; ``desired`` is its maximum. Absent if not elastic, suspended or finished."""
    waiting: int | None = None
    """Learners of an elastic pool that wait for a node. Absent if none."""
    queued: int | None = None
    """Learners that wait for quota of Kueue. Absent if none."""
    message: str | None = None
    """Why learners wait for a node or for quota. Absent if none do."""
    fallback_learners: int | None = None
    """Learners that run in the region's next pool, because there is no node here. Absent if none."""
    left_out: int | None = None
    """Learners whose outer gradients merges keep leaving out. Absent if none."""
    given_up: Annotated[tuple[int, ...], Field(max_length=10_000, json_schema_extra=SET)] | None = None
    """Indices of learners that are given up for good. Absent if none."""
    held: int | None = None
    """Learners whose pods are held back without a node: given up, in ``excludedIndices`` or ``unplaced``. Absent if
    none."""
    unplaced: Annotated[tuple[UnplacedLearner, ...], Field(max_length=10_000)] | None = None
    """Learners of which only some pods found a node. Absent if none."""
    nodes_per_learner: int | None = None
    """Pods of each learner, one on a node. Absent if one."""
    stateful_set: str = ""
    """The StatefulSet that runs them."""


class RegionStatus(StatusModel):
    """Learners of one region."""

    name: str
    """The region."""
    desired: int = 0
    """Learners the spec asks for; 0 while the job is suspended or finished."""
    training: int = 0
    """Learners that train, as the syncer reports."""
    cluster: str | None = None
    """The other cluster that it is in, by the Secret with the kubeconfig. Absent at home."""
    reason: str | None = None
    """Machine-readable reason why that cluster is not ready. Absent if it is."""
    message: str | None = None
    """Explanation of ``reason``."""
    since: Time | None = None
    """Start of the time in which that cluster is not ready. Absent while it is."""
    last_seen_time: Time | None = None
    """Last answer of that cluster; ``ready`` of its pools is as of then. Absent while it answers."""
    place: str | None = None
    """Server and namespace that hold its objects. Absent at home, and until that cluster has answered once."""
    pools: Annotated[tuple[PoolStatus, ...], Field(max_length=64), MapBy("name")] = ()
    """Its pools."""


class FormerCluster(StatusModel):
    """Another cluster that no region names any more, and that may still hold objects of the job."""

    cluster: str
    """The Secret with its kubeconfig."""
    place: str
    """Server and namespace that hold the objects."""
    reason: str | None = None
    """Machine-readable reason why they cannot be deleted. Absent while they are."""
    message: str | None = None
    """Explanation of ``reason``."""
    since: Time | None = None
    """Start of the time in which that cluster is not ready. Absent while it is."""
    last_seen_time: Time | None = None
    """Last answer of that cluster. Absent while it answers."""


class LearnerRestarts(StatusModel):
    """How often one learner was restarted."""

    learner: str
    """The learner, as ``region/pool/index``."""
    count: int = Field(ge=1)
    """Restarts."""


class SyncerEndpoints(StatusModel):
    """Where the syncer is in the cluster."""

    endpoint: str = ""
    """host:port that learners of this cluster connect to (gRPC, mutual TLS)."""
    external_endpoint: str = ""
    """host:port that learners of other clusters connect to; empty: there is none."""
    external_endpoint_missing: str = ""
    """Why it is missing although ``spec.syncer.expose`` asks for it."""
    http_endpoint: str = ""
    """host:port of ``/status``, ``/metrics``, ``/healthz`` and ``/readyz``."""
    epoch: int = 0
    """Times the syncer has been started on this job's volume."""
    claim_uid: str = ""
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

    observed_generation: int = 0
    """The spec's generation that this describes."""
    phase: str = "Pending"
    """Summary of the conditions for display; programs read the conditions."""
    reason: str = ""
    """Reason of the condition behind ``phase``."""
    operator: str | None = None
    """The operator that acts: its namespace, its Lease there, and its version."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16), MapBy("type")] = ()
    """One of each type."""
    progress: Progress | None = None
    """How far the training is. Absent until the syncer has answered once."""
    learners: LearnerCounts = LearnerCounts()
    """Learners of the whole job."""
    regions: Annotated[tuple[RegionStatus, ...], Field(max_length=64), MapBy("name")] = ()
    """Learners by region and pool."""
    former_clusters: Annotated[tuple[FormerCluster, ...], Field(max_length=64), MapBy("cluster")] = ()
    """Clusters that no region names any more, until nothing of the job is left there."""
    restarts: Annotated[tuple[LearnerRestarts, ...], Field(max_length=MOST_RESTARTS_LISTED), MapBy("learner")] = ()
    """Learners that were restarted, those with most restarts first, at most 50."""
    syncer: SyncerEndpoints | None = None
    """Where the syncer is."""
    outer_optimizer: str | None = None
    """Learning rate and momentum of the outer optimizer, and the reason for them."""
    computing: str | None = None
    """What learners compute in and on, such as ``BF16, compiled on NVIDIA H100 80GB HBM3``; with how many of them if
    they differ."""
    model: ExportedModel | None = None
    """The trained model, once the job is complete."""
    start_time: Time | None = None
    """When the job was started, or last resumed: what ``activeDeadlineSeconds`` counts from."""
    completion_time: Time | None = None
    """When it became Complete or Failed: what ``ttlSecondsAfterFinished`` counts from."""

    @property
    def fallback_learners(self) -> dict[str, int]:
        """Learners that run in the region's next pool, of each pool that has such, by ``REGION/POOL``."""
        pools = ((f"{region.name}/{pool.name}", pool) for region in self.regions for pool in region.pools)
        return {place: pool.fallback_learners for place, pool in pools if pool.fallback_learners}

    @property
    def unplaced(self) -> tuple[tuple[str, UnplacedLearner], ...]:
        """Learners of which only some pods found a node, each with its id."""
        pools = ((f"{region.name}/{pool.name}", pool) for region in self.regions for pool in region.pools)
        return tuple((f"{place}/{one.index}", one) for place, pool in pools for one in pool.unplaced or ())

    def as_object(self) -> dict[str, Any]:
        """The plain JSON object for the API server; what is None is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
