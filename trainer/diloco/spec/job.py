"""The ``DiLoCoJob`` itself, and the checks that need more than one part of it."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from diloco.spec.backup import InitFrom
from diloco.spec.base import MapBy, SpecModel
from diloco.spec.checks import problems
from diloco.spec.errors import refuse
from diloco.spec.kube.values import Annotations, ClassName, ControllerName, DnsLabel, ImageName, Labels
from diloco.spec.names.learner_ids import pool_of
from diloco.spec.placement import FailurePolicy, Pool, Region, SyncerSpec
from diloco.spec.pods import ImagePullSecrets
from diloco.spec.sync import SyncSpec
from diloco.spec.training import DataSpec, LoopSpec, ModelSpec, TaskSpec, TrainingSpec

API_VERSION = "diloco.dev/v1alpha1"
KIND = "DiLoCoJob"
MANAGER = "diloco.dev/operator"
"""The controller that manages a job which names none."""


class Metadata(BaseModel):
    """The part of Kubernetes' ObjectMeta that diloco reads; other fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    name: DnsLabel
    """The job's name."""
    namespace: DnsLabel = "default"
    """Its namespace. Used only in a cluster."""
    uid: str = ""
    """Set by Kubernetes."""
    generation: int = Field(default=0, ge=0)
    """Set by Kubernetes."""


class Queue(SpecModel):
    """The queue of Kueue in which the job's pods wait for quota, learner by learner."""

    name: ClassName
    """The LocalQueue, in the job's namespace."""
    priority_class: ClassName | None = None
    """The WorkloadPriorityClass. Default: priority 0."""


class JobSpec(SpecModel):
    """The desired state."""

    suspend: bool = False
    """true: stop after a checkpoint. false: run, or resume."""
    managed_by: ControllerName | None = None
    """The controller that manages the job in a cluster. The operator leaves a job that names another one alone, its
    status too. Default: diloco.dev/operator, the operator."""
    queue: Queue | None = None
    """Waits for quota of Kueue. Needs an operator with ``kueue.enabled``. Default: pods start at once. In a cluster."""
    image: ImageName | None = None
    """Trainer image, unless a pool sets its own. Needed in a cluster."""
    image_pull_secrets: ImagePullSecrets = ()
    """Secrets for pulling images, for every pod, in each namespace in which the job has pods. Default: the
    operator's, ``trainer.image.pullSecrets`` of its chart."""
    labels: Labels = Field(default_factory=dict)
    """Labels of every object and pod of the job in clusters, beside the operator's."""
    annotations: Annotations = Field(default_factory=dict)
    """Annotations of every object and pod of the job in clusters, beside the operator's."""
    model: ModelSpec
    """The model."""
    data: DataSpec = DataSpec()
    """The data."""
    task: TaskSpec | None = None
    """What is trained, by code of your own. Default: a language model of the data."""
    loop: LoopSpec | None = None
    """A training loop of your own, instead of ``task`` and ``data``."""
    training: TrainingSpec
    """Budget, batch, inner optimizer, evaluation."""
    sync: SyncSpec = SyncSpec()
    """Synchronization."""
    syncer: SyncerSpec = SyncerSpec()
    """The sync-server."""
    init_from: InitFrom | None = None
    """Start from a backup or a model, while the syncer has no checkpoint. Default: new parameters."""
    regions: Annotated[tuple[Region, ...], Field(min_length=1, max_length=64), MapBy("name")]
    """Where learners run."""
    failure_policy: FailurePolicy = FailurePolicy()
    """How failing learners are handled."""
    active_deadline_seconds: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """Seconds until an incomplete job fails. Default: never."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Seconds until a finished job is deleted. Default: never."""

    @property
    def has_own_code(self) -> bool:
        """Whether data and loss are those of ``task`` or ``loop``, so that ``data`` names none."""
        return self.task is not None or self.loop is not None

    @property
    def pools(self) -> dict[str, Pool]:
        """Every pool by ``region/pool``, in the manifest's order."""
        return {f"{region.name}/{pool.name}": pool for region in self.regions for pool in region.pools}

    @property
    def regions_by_name(self) -> dict[str, Region]:
        """Every region by its name, in the manifest's order."""
        return {region.name: region for region in self.regions}

    @property
    def learner_ids(self) -> tuple[str, ...]:
        """Every learner's id, ``region/pool/index``, in the manifest's order."""
        return tuple(f"{place}/{index}" for place, pool in self.pools.items() for index in pool.indices)

    def pool_of(self, learner: str) -> Pool:
        """The pool of a learner, by its id.

        Raises:
            ValueError: there is none of that name.
        """
        try:
            return self.pools[pool_of(learner)]
        except KeyError:
            raise ValueError(f"no pool of {learner}") from None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        # Collected, so that one run shows them all.
        refuse(problems(self))
        return self


class DiLoCoJob(SpecModel):
    """A training job."""

    api_version: Literal["diloco.dev/v1alpha1"]
    """The version of this format."""
    kind: Literal["DiLoCoJob"]
    """What this manifest describes."""
    metadata: Metadata
    """Name and namespace; other fields of Kubernetes are ignored."""
    spec: JobSpec
    """The desired state."""
    status: dict[str, Any] | None = Field(default=None, exclude=True)
    """What the operator reports; ignored in a manifest."""
