"""Where a job runs: the syncer, regions, pools of nodes, and what is passed through to their pods."""

from typing import Annotated, Any, Literal

from pydantic import Field

from diloco.spec.base import DNS_LABEL, QUANTITY, SpecModel

DnsLabel = Annotated[str, Field(pattern=DNS_LABEL, max_length=63)]
"""A DNS label (RFC 1123), as Kubernetes wants for names."""

KubernetesObject = dict[str, Any]
"""A fragment of a Kubernetes object that is handed to the pods as it is."""


class SecretKey(SpecModel):
    """One key of a Secret in the job's namespace."""

    name: DnsLabel
    """The Secret."""
    key: str = Field(default="kubeconfig", min_length=1, max_length=253)
    """The key in it."""


class RemoteCluster(SpecModel):
    """Another Kubernetes cluster."""

    kubeconfig_secret: SecretKey
    """Where the kubeconfig of that cluster is kept."""


class Pool(SpecModel):
    """Learners on one kind of node."""

    name: DnsLabel
    """Unique in its region."""
    learners: int = Field(default=1, ge=0, le=10_000)
    """Learner units in this pool."""
    nodes_per_learner: int = Field(default=1, ge=1, le=1024)
    """Pods that make up one learner unit (one torch process group); the unit's batch is shared evenly among them."""
    batch_size: int | None = Field(default=None, ge=1, le=65_536)
    """Sequences in an inner step of a whole learner unit. Default: ``training.batchSize``."""
    image: str | None = Field(default=None, min_length=1)
    """Trainer image for this pool. Default: ``spec.image``."""
    resources: KubernetesObject = Field(default_factory=dict)
    """Container resources (requests, limits)."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Node labels a pod needs."""
    tolerations: tuple[KubernetesObject, ...] = ()
    """Taints a pod tolerates."""
    affinity: KubernetesObject = Field(default_factory=dict)
    """Scheduling affinity."""
    priority_class_name: str | None = None
    """PriorityClass of the pods."""
    runtime_class_name: str | None = None
    """RuntimeClass of the pods."""
    env: tuple[KubernetesObject, ...] = ()
    """More environment variables of the learner's container."""
    volumes: tuple[KubernetesObject, ...] = ()
    """More volumes of the pod."""
    volume_mounts: tuple[KubernetesObject, ...] = ()
    """Where the learner's container mounts them."""
    image_pull_secrets: tuple[KubernetesObject, ...] = ()
    """Secrets to pull the image with."""


class Region(SpecModel):
    """A site: pools whose learners share a link to the syncer."""

    name: DnsLabel
    """Unique in the job."""
    cluster: RemoteCluster | None = None
    """The cluster this region is. Default: the operator's own."""
    pools: tuple[Pool, ...] = Field(min_length=1, max_length=64)
    """Its pools."""


class Storage(SpecModel):
    """The syncer's volume."""

    size: str = Field(default="10Gi", pattern=QUANTITY)
    """Size of the PersistentVolumeClaim. Two checkpoints and the tape must fit: about 20 bytes a parameter."""
    class_name: str | None = None
    """StorageClass. Default: the cluster's."""


class Expose(SpecModel):
    """How learners reach the syncer."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Kind of Service. Learners in other clusters need NodePort or LoadBalancer."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations of the Service, for the load balancer's sake."""


class SyncerSpec(SpecModel):
    """The process that merges."""

    checkpoint_every_seconds: float = Field(default=30.0, gt=0, le=86_400)
    """Seconds between checkpoints: what a crash of the syncer may lose."""
    keep_checkpoints: int = Field(default=2, ge=1, le=100)
    """Checkpoints kept on disk."""
    storage: Storage = Storage()
    """Its volume."""
    resources: KubernetesObject = Field(default_factory=dict)
    """Container resources."""
    expose: Expose = Expose()
    """Its Service."""


class FailurePolicy(SpecModel):
    """When failures end the job."""

    max_restarts_per_learner: int | None = Field(default=None, ge=0, le=1_000_000)
    """Restarts after which a learner is given up; the job goes on without it. Default: never."""
    minimum_learners: int = Field(default=0, ge=0, le=10_000)
    """Learners still in the job below which it fails, once those given up leave fewer. 0: never."""
