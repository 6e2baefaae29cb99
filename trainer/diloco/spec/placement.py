"""Where a job runs: the syncer, regions, pools of nodes, and what is passed to their pods unchanged."""

from typing import Annotated, Any, Literal

from pydantic import Field

from diloco.spec import automatic
from diloco.spec.automatic import AUTO
from diloco.spec.backup import Backup
from diloco.spec.base import ADDRESS_RANGE, BOUND, DNS_LABEL, HOST, HOST_NAME, QUANTITY, RATE, SpecModel, bytes_in
from diloco.spec.training import BATCH_LIMIT, TrainingSpec

DnsLabel = Annotated[str, Field(pattern=DNS_LABEL, max_length=63)]
"""A DNS label (RFC 1123), as Kubernetes wants for names."""

KubernetesObject = dict[str, Any]
"""Part of a Kubernetes object that is passed to the pods unchanged."""

# Upper bounds that Kubernetes itself does not have are ours. An API server accepts a rule of the custom resource only
# if it can estimate the cost of checking the largest possible job, so everything must be bounded.
ImageName = Annotated[str, Field(min_length=1, max_length=1024)]
"""A container image, by tag or digest."""

ClassName = Annotated[str, Field(max_length=253)]
"""The name of a PriorityClass, RuntimeClass or StorageClass (RFC 1123 subdomain)."""

LabelValue = Annotated[str, Field(max_length=63)]
"""The value of a Kubernetes label."""

AnnotationValue = Annotated[str, Field(max_length=4096)]
"""The value of an annotation."""


HostName = Annotated[str, Field(pattern=HOST_NAME, max_length=253)]
"""A name in DNS (RFC 1123 subdomain)."""

Host = Annotated[str, Field(pattern=HOST, max_length=253)]
"""A name in DNS, or an address (IPv6 without brackets)."""

BatchSize = Annotated[int | Literal["Auto"], automatic.checked(1, BATCH_LIMIT), automatic.schema(1, BATCH_LIMIT)]
"""Sequences, or Auto."""

AddressRange = Annotated[str, Field(pattern=ADDRESS_RANGE, max_length=43)]
"""Addresses by their prefix (CIDR)."""

_LEAST_TAPE_BYTES = 64 << 20
_MOST_TAPE_BYTES = 2 << 30


class SecretKey(SpecModel):
    """One key of a Secret in the job's namespace."""

    name: DnsLabel
    """The Secret."""
    key: str = Field(default="kubeconfig", min_length=1, max_length=253)
    """The key in it."""


class RemoteCluster(SpecModel):
    """Another Kubernetes cluster."""

    kubeconfig_secret: SecretKey
    """The Secret that holds the kubeconfig of that cluster."""


class Resources(SpecModel):
    """Resources of a container (Kubernetes' ResourceRequirements)."""

    requests: KubernetesObject = Field(default_factory=dict, max_length=64)
    """Reserved on its node: a quantity for each resource."""
    limits: KubernetesObject = Field(default_factory=dict, max_length=64)
    """The most that it may use, with accelerators: a quantity for each resource."""
    claims: tuple[KubernetesObject, ...] = Field(default=(), max_length=64)
    """Names of the pod's resource claims (dynamic resource allocation)."""


class Toleration(SpecModel):
    """A taint of nodes that a pod tolerates (Kubernetes' Toleration)."""

    key: str | None = Field(default=None, max_length=317)
    """The taint's key. Default: any, with the operator Exists."""
    operator: Literal["Exists", "Equal", "Lt", "Gt"] | None = None
    """How the taint's value is compared. Default: Equal."""
    value: str | None = Field(default=None, max_length=253)
    """The value to compare with."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect. Default: any."""
    toleration_seconds: int | None = Field(default=None, ge=-(2**31), lt=2**31)
    """How long a taint with the effect NoExecute is tolerated. Default: forever."""


class PodMetadata(SpecModel):
    """Labels and annotations beside the operator's."""

    labels: dict[str, LabelValue] = Field(default_factory=dict, max_length=64)
    """Labels."""
    annotations: dict[str, AnnotationValue] = Field(default_factory=dict, max_length=64)
    """Annotations."""


class PodTemplate(SpecModel):
    """Additions to a pod template."""

    metadata: PodMetadata = PodMetadata()
    """Labels and annotations."""
    spec: KubernetesObject = Field(default_factory=dict)
    """Fields of a pod's spec: placement (``nodeSelector``, ``tolerations``, ``affinity``,
    ``topologySpreadConstraints``), ``priorityClassName``, ``schedulerName``, ``serviceAccountName``,
    ``initContainers``, ``volumes``, ``resourceClaims`` and the like; of our own container ``env``, ``envFrom`` and
    ``volumeMounts``; of ``securityContext`` the ``sysctls`` net.ipv4.tcp_rmem and net.ipv4.tcp_wmem, which nodes accept
    from Kubernetes 1.32 on. Fields that the operator sets are refused, and so are hostPath volumes, init containers
    with privileges, and the job's own Secrets."""


class LearnerStorage(SpecModel):
    """A volume for each learner of a pool, which outlives the learner's pods. For jobs in a cluster."""

    size: str = Field(default="10Gi", pattern=QUANTITY, max_length=20)
    """Size of each PersistentVolumeClaim. Three checkpoints of the inner optimizer must fit: 24 bytes a parameter, 36
    with ``sync.errorFeedback`` (Int8, Int4)."""
    class_name: ClassName | None = None
    """StorageClass. Default: the cluster's."""
    access_mode: Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"] = "ReadWriteOnce"
    """ReadWriteOnce, ReadWriteOncePod: if a node stops responding, its learners wait until it is back, is deleted, or
    has the out-of-service taint. ReadWriteMany: their pods are replaced; this needs a shared file system."""
    when_deleted: Literal["Delete", "Retain"] = "Delete"
    """Retain: the claims stay when the job is deleted. A later job of that name takes them, but uses their state only
    if its syncer continues the same training (``syncer.storage.adopt``, a backup)."""
    when_scaled: Literal["Delete", "Retain"] = "Retain"
    """Delete: claims are deleted when the pool shrinks, and all of them when the job is suspended or has ended."""


class Pool(SpecModel):
    """Learners on one kind of node."""

    name: DnsLabel
    """Unique in its region."""
    learners: int = Field(default=1, ge=0, le=10_000)
    """Number of learners; the maximum if ``minimumLearners`` is set."""
    minimum_learners: int | None = Field(default=None, ge=0, le=10_000)
    """Makes the pool elastic: it has as many learners as there are nodes for, from this number to ``learners``. The job
    is not Degraded, and no time counts as lost, while pods beyond this number have no node. Default: ``learners``."""
    excluded_indices: tuple[Annotated[int, Field(ge=0, lt=10_000)], ...] = Field(default=(), max_length=64)
    """Indices of learners to leave out, each below ``learners``. The others keep their indices. Can change while the
    job runs. In a cluster, the pods of these learners stay Pending and take no node. Default: none."""
    fallback_after_seconds: int | None = Field(default=None, ge=10, le=86_400)
    """Seconds that a pod of this pool waits for a node before its learner starts in the region's next pool. The pod
    here keeps waiting; once it trains, the other one ends. Only in a cluster. Default: pods only wait."""
    nodes_per_learner: int = Field(default=1, ge=1, le=1024)
    """Pods of one learner. More than 1 is not supported yet and is refused."""
    batch_size: BatchSize | None = None
    """Sequences per inner step of a learner. Auto: as many as fit the device's memory, at most ``training.batchSize``;
    a learner tries this when it starts. Default: ``training.batchSize``."""
    image: ImageName | None = None
    """Trainer image for this pool. Default: ``spec.image``."""
    resources: Resources | None = None
    """Container resources."""
    node_selector: dict[str, LabelValue] = Field(default_factory=dict, max_length=64)
    """Labels that a pod's node must have."""
    tolerations: tuple[Toleration, ...] = Field(default=(), max_length=64)
    """Taints a pod tolerates."""
    affinity: KubernetesObject = Field(default_factory=dict)
    """Scheduling affinity. Without a ``podAntiAffinity``, learners prefer nodes other than the syncer's."""
    priority_class_name: ClassName | None = None
    """PriorityClass of the pods. Learners with a higher priority than the syncer can displace it: set
    ``syncer.podTemplate.spec.priorityClassName`` too."""
    runtime_class_name: ClassName | None = None
    """RuntimeClass of the pods."""
    env: tuple[KubernetesObject, ...] = Field(default=(), max_length=256)
    """Additional environment variables of the learner's container."""
    volumes: tuple[KubernetesObject, ...] = Field(default=(), max_length=64)
    """Additional volumes of the pod. The operator refuses hostPath and the job's own Secrets."""
    volume_mounts: tuple[KubernetesObject, ...] = Field(default=(), max_length=64)
    """Where the learner's container mounts the volumes."""
    image_pull_secrets: tuple[KubernetesObject, ...] = Field(default=(), max_length=16)
    """Secrets to pull the image with."""
    pod_template: PodTemplate | None = None
    """Additions to the pod template. Without ``topologySpreadConstraints``, learners prefer nodes with fewer learners
    of the job; without ``podAntiAffinity``, zones with fewer learners, and nodes other than the syncer's."""
    storage: LearnerStorage | None = None
    """A volume for each learner: its inner optimizer outlives its pod. Default: none; in a new pod the inner optimizer
    begins without moments and warms up."""

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of its learners, ascending."""
        left_out = frozenset(self.excluded_indices)
        return tuple(index for index in range(self.learners) if index not in left_out)

    @property
    def size(self) -> int:
        """Number of its learners; the most of them if it is elastic."""
        return self.learners - sum(index < self.learners for index in frozenset(self.excluded_indices))

    def largest_batch(self, training: TrainingSpec) -> int:
        """Sequences in an inner step of its learners, at most."""
        return training.batch_size if self.batch_size is None or self.batch_size == AUTO else self.batch_size

    @property
    def elastic(self) -> bool:
        """Whether it may have fewer learners than are planned."""
        return self.minimum_learners is not None and self.minimum_learners < self.size


class Region(SpecModel):
    """A site: pools whose learners share a link to the syncer."""

    name: DnsLabel
    """Unique in the job."""
    cluster: RemoteCluster | None = None
    """The cluster of this region. Default: the operator's own."""
    connections: int = Field(default=8, ge=1, le=64)
    """TCP connections of each learner of this region. A long link needs more of them."""
    bandwidth: str | None = Field(default=None, pattern=RATE, max_length=20)
    """Limit of what this region's learners together exchange with the syncer, each way, such as 500Mbit/s. Headers of
    the network add a few percent. Default: no limit."""
    pools: tuple[Pool, ...] = Field(min_length=1, max_length=64)
    """Its pools."""


class Storage(SpecModel):
    """The syncer's volume."""

    size: str = Field(default="10Gi", pattern=QUANTITY, max_length=20)
    """Size of the PersistentVolumeClaim. Two checkpoints and the tape must fit: about 20 bytes a parameter, 28
    with sync.downlink BF16 or Int8. With ``syncer.backup`` one more checkpoint must fit, which is held while it is
    uploaded: 28 and 40 bytes a parameter."""
    class_name: ClassName | None = None
    """StorageClass. Default: the cluster's."""
    access_mode: Literal["ReadWriteOnce", "ReadWriteOncePod"] = "ReadWriteOnce"
    """ReadWriteOncePod: Kubernetes keeps a second pod off the volume. Needs a CSI driver that supports it; with others
    the volume is never created."""
    when_deleted: Literal["Delete", "Retain"] = "Delete"
    """Retain: the claim, with its checkpoints and the finished model, stays when the job is deleted."""
    adopt: bool = False
    """true: continue with the claim that a deleted job of this name has retained. false: such a claim keeps the job
    from starting."""


class Tape(SpecModel):
    """The record of the syncer's decisions, for ``diloco replay``."""

    max_size: str | None = Field(default=None, pattern=BOUND, max_length=20)
    """Size limit of all its files. Closed parts are compressed; the oldest are deleted first. Default: a tenth of
    ``storage.size``, from 64Mi to 2Gi."""


class Expose(SpecModel):
    """How learners reach the syncer."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer", "External"] = "ClusterIP"
    """ClusterIP: only learners in this cluster. NodePort, LoadBalancer: a Service of that type, with the learners' port
    only. External: your own proxy or tunnel at ``host`` and ``port`` that does not end TLS (a TLSRoute in passthrough,
    a proxy that routes by SNI). Learners in other clusters need one of the last three. They send the name in the
    syncer's certificate, JOB.NAMESPACE.syncer.diloco.internal, as SNI, and check it."""
    host: Host | None = None
    """NodePort: address or name of nodes. External: address or name of the proxy or tunnel."""
    port: int | None = Field(default=None, ge=1, le=65_535)
    """Port of the external address."""
    annotations: dict[str, AnnotationValue] = Field(default_factory=dict, max_length=64)
    """Annotations of the Service, for example for the load balancer."""
    source_ranges: tuple[AddressRange, ...] = Field(default=(), max_length=64)
    """Addresses from which learners outside the cluster, or the external proxy, may connect, such as 203.0.113.0/24.
    Default: any; only certificates keep others out."""


class SyncerSpec(SpecModel):
    """The process that merges."""

    checkpoint_every_seconds: float = Field(default=30.0, gt=0, le=86_400)
    """Seconds between checkpoints: the most that a crash of the syncer loses."""
    keep_checkpoints: int = Field(default=2, ge=1, le=100)
    """Checkpoints kept on disk."""
    storage: Storage = Storage()
    """Its volume."""
    tape: Tape = Tape()
    """Its record."""
    backup: Backup | None = None
    """Copies of its checkpoints elsewhere. Default: none."""
    resources: Resources | None = None
    """Container resources. Default requests: 100m cpu and 256Mi memory, enough for a small model. Memory grows with the
    model; request what it uses."""
    pod_template: PodTemplate | None = None
    """Additions to the syncer's pod template: placement, priority, service account."""
    expose: Expose = Expose()
    """Its Service."""

    @property
    def tape_bytes(self) -> int:
        """What the tape may take."""
        if self.tape.max_size is not None:
            return bytes_in(self.tape.max_size)
        return min(max(bytes_in(self.storage.size) // 10, _LEAST_TAPE_BYTES), _MOST_TAPE_BYTES)


class LostPods(SpecModel):
    """What happens to a learner's pod if its node stops responding."""

    action: Literal["Replace", "Wait"] = "Replace"
    """Replace: the operator deletes the pod by force if the syncer does not hear from the learner and the pod mounts no
    claim that only one node may use. Wait: the pod stays until its node is back or you delete it."""
    after_seconds: int = Field(default=60, ge=10, le=86_400)
    """Seconds after its grace period until a pod counts as lost. A job that is suspended or has ended waits as long for
    the pod's learner."""


class FailurePolicy(SpecModel):
    """How failing learners are handled, and when they end the job."""

    max_restarts_per_learner: int | None = Field(default=None, ge=0, le=1_000_000)
    """A learner is given up for good after this many restarts of its container; the job continues without it. Leaving
    in an orderly way does not count, nor does a new pod after an eviction, a deletion or the loss of a node. Default:
    never."""
    minimum_learners: int = Field(default=0, ge=0, le=10_000)
    """The job fails if fewer learners than this are left after others were given up. 0: never. Needs
    ``maxRestartsPerLearner``."""
    stuck_seconds: float = Field(default=300.0, ge=0, le=86_400)
    """Seconds without a step after which a connected learner is restarted: at least 30 of its own steps, and
    ``sync.startupSeconds`` before the first. Waiting for fragments and evaluating do not count. 0: never (ours)."""
    quarantine_seconds: float = Field(default=600.0, ge=1, le=86_400)
    """A learner whose model diverges is reset from the global model. One that diverges again soon after is left out of
    the quorum and of all merges for this long, twice as long the next time, at most 64 times as long (ours)."""
    lost_pods: LostPods = LostPods()
    """Pods on nodes that no longer respond. For jobs in a cluster."""
