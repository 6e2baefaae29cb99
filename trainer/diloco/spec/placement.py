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
    """What its node reserves for it: a quantity for each resource."""
    limits: KubernetesObject = Field(default_factory=dict, max_length=64)
    """What it may use at most, accelerators included: a quantity for each resource."""
    claims: tuple[KubernetesObject, ...] = Field(default=(), max_length=64)
    """Claims of its pod that it uses (dynamic resource allocation)."""


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
    """What pods carry in addition to what the operator sets."""

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
    """With ReadWriteOnce and ReadWriteOncePod, the pod of a learner whose node no longer responds is not replaced until
    the node is back, is deleted, or has the out-of-service taint. With ReadWriteMany it is replaced as without a
    volume; that needs a shared file system."""
    when_deleted: Literal["Delete", "Retain"] = "Delete"
    """Retain: the claims stay when the job is deleted. A later job of the same name takes them, but uses what is on
    them only if its syncer goes on with the same training (``syncer.storage.adopt``, a backup)."""
    when_scaled: Literal["Delete", "Retain"] = "Retain"
    """Delete: the claim of a learner goes when the pool has fewer learners; those of all learners go when the job is
    suspended or has ended."""


class Pool(SpecModel):
    """Learners on one kind of node."""

    name: DnsLabel
    """Unique in its region."""
    learners: int = Field(default=1, ge=0, le=10_000)
    """Number of learners; the maximum if ``minimumLearners`` is set."""
    minimum_learners: int | None = Field(default=None, ge=0, le=10_000)
    """Makes the pool elastic: it may have any number of learners from this to ``learners``, as many as there are nodes
    for. Pods beyond this number may wait for a node, or lose theirs, without the job being Degraded, and that time does
    not count. 0: it may have none at all. Default: ``learners``."""
    excluded_indices: tuple[Annotated[int, Field(ge=0, lt=10_000)], ...] = Field(default=(), max_length=64)
    """Indices of learners to leave out, each below ``learners``. The others keep their indices. It may change while the
    job runs. In a cluster, the pod of such a learner stays Pending, and takes no node. Default: none."""
    fallback_after_seconds: int | None = Field(default=None, ge=10, le=86_400)
    """In a cluster: when pods of this pool have waited so long for a node, the region's next pool gets as many more
    learners. The pods here go on waiting; when one of them works, one of the others ends. Default: they only wait."""
    nodes_per_learner: int = Field(default=1, ge=1, le=1024)
    """Pods that make up one learner unit. More than 1 is not supported yet and is refused."""
    batch_size: BatchSize | None = None
    """Sequences per inner step of a whole learner unit. Auto: as many as the memory of its device holds, at most
    ``training.batchSize``; a learner tries that when it starts. Default: ``training.batchSize``."""
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
    """PriorityClass of the pods. If its value is above that of the syncer's pod, learners can displace the syncer: then
    set ``syncer.podTemplate.spec.priorityClassName`` too."""
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
    """Additions to the pod template of this pool. Without ``topologySpreadConstraints``, learners prefer nodes with
    fewer learners of the job; without ``podAntiAffinity``, zones with fewer of them and nodes other than the
    syncer's."""
    storage: LearnerStorage | None = None
    """A volume for each learner, on which its inner optimizer outlives its pod. Default: none; in a new pod the inner
    optimizer begins without moments and warms up."""

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
    """TCP connections over which each learner of this region spreads a fragment. More of them fill a longer link."""
    bandwidth: str | None = Field(default=None, pattern=RATE, max_length=20)
    """Most that this region's learners together exchange with the syncer, each way, such as 500Mbit/s. It counts bytes
    of fragments; the network's own headers add a few percent. Default: no limit."""
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
    """With ReadWriteOncePod, Kubernetes keeps a second pod off the volume. It needs a CSI driver that supports it; with
    others the volume is never created."""
    when_deleted: Literal["Delete", "Retain"] = "Delete"
    """Retain: the claim, with its checkpoints and the finished model, stays when the job is deleted."""
    adopt: bool = False
    """true: go on with a claim that a deleted job of this name has retained. Without it, such a claim keeps a new job
    of that name from starting."""


class Tape(SpecModel):
    """The record of the syncer's decisions, for ``diloco replay``."""

    max_size: str | None = Field(default=None, pattern=BOUND, max_length=20)
    """What all its files together may take. Closed parts are compressed, and the oldest are deleted first. Default: a
    tenth of ``storage.size``, from 64Mi to 2Gi."""


class Expose(SpecModel):
    """How learners reach the syncer."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer", "External"] = "ClusterIP"
    """ClusterIP: only from this cluster. NodePort and LoadBalancer: by a Service of that type, which has the port for
    learners only. External: by something of yours at ``host`` and ``port`` that leads there without ending TLS (a
    TLSRoute in passthrough, a proxy that routes by SNI, a tunnel). Learners in other clusters need one of the last
    three. The syncer's certificate has one fixed name, JOB.NAMESPACE.syncer.diloco.internal, which learners send as SNI
    and check; no address is in it."""
    host: Host | None = None
    """NodePort: a node's address, or a name that leads to nodes. External: the address of what leads to the syncer."""
    port: int | None = Field(default=None, ge=1, le=65_535)
    """External: the port of what leads to the syncer."""
    annotations: dict[str, AnnotationValue] = Field(default_factory=dict, max_length=64)
    """Annotations of the Service, for example for the load balancer."""
    hosts: tuple[HostName, ...] = Field(default=(), max_length=16)
    """Ignored, and accepted for manifests of earlier versions, in which these names went into the certificate."""
    source_ranges: tuple[AddressRange, ...] = Field(default=(), max_length=64)
    """Ranges of addresses that learners outside the cluster connect from, such as 203.0.113.0/24; with External those
    of what leads to the syncer. Default: any; then only certificates keep others out."""


class SyncerSpec(SpecModel):
    """The process that merges."""

    checkpoint_every_seconds: float = Field(default=30.0, gt=0, le=86_400)
    """Seconds between checkpoints: what a crash of the syncer may lose."""
    keep_checkpoints: int = Field(default=2, ge=1, le=100)
    """Checkpoints kept on disk."""
    storage: Storage = Storage()
    """Its volume."""
    tape: Tape = Tape()
    """Its record."""
    backup: Backup | None = None
    """Copies of its checkpoints elsewhere. Default: none."""
    resources: Resources | None = None
    """Container resources. Cpu and memory for which neither a request nor a limit is given get a request of 100m and
    256Mi: enough for a small model. Its memory grows with the model; request what it uses."""
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
    """What becomes of a learner's pod whose node no longer responds."""

    action: Literal["Replace", "Wait"] = "Replace"
    """Replace: the operator deletes the pod by force, so that a new one takes its place, if the syncer does not hear
    from the learner and the pod mounts no claim that only one node may use. Wait: it stays until its node is back or
    somebody deletes it."""
    after_seconds: int = Field(default=60, ge=10, le=86_400)
    """Seconds after the end of a pod's grace period from which it counts as lost. A job that is suspended or has ended
    waits as long for the pod's learner."""


class FailurePolicy(SpecModel):
    """What is done about learners that fail, and when that ends the job."""

    max_restarts_per_learner: int | None = Field(default=None, ge=0, le=1_000_000)
    """Restarts after which a learner is given up; the job continues without it. In a cluster, restarts of its container
    count, before it has joined too. Handing in its work and leaving does not count as a restart, nor does a new pod in
    place of one that was evicted, deleted or lost with its node. Default: never."""
    minimum_learners: int = Field(default=0, ge=0, le=10_000)
    """The job fails when learners are given up and fewer than this are left. 0: never. Needs
    ``maxRestartsPerLearner``."""
    stuck_seconds: float = Field(default=300.0, ge=0, le=86_400)
    """A learner that is connected but makes no step for this long is restarted; 30 of its own steps if that is longer,
    and ``sync.startupSeconds`` before its first step. Time in which it waits for fragments or evaluates does not count.
    0: never (ours)."""
    quarantine_seconds: float = Field(default=600.0, ge=1, le=86_400)
    """A learner whose model diverges is reset from the global model. One that diverges again soon after is left out of
    the quorum and of all merges for this long, twice as long the next time, at most 64 times as long (ours)."""
    lost_pods: LostPods = LostPods()
    """Pods on nodes that no longer respond. For jobs in a cluster."""
