"""Where a job runs: the syncer, regions, pools of nodes, and what happens to learners that fail."""

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from diloco.spec.backup import Backup
from diloco.spec.base import BOUND, HOST, HOST_NAME, RATE, SET, MapBy, Size, SpecModel, bytes_in
from diloco.spec.kube.values import AddressRange, Annotations, ClassName, DnsLabel, ImageName, LabelKey, amount
from diloco.spec.pods import PodTemplate, Resources, Variables
from diloco.spec.training import BATCH_LIMIT, TrainingSpec

HostName = Annotated[str, Field(pattern=HOST_NAME, max_length=253)]
"""A name in DNS (RFC 1123 subdomain)."""

Host = Annotated[str, Field(pattern=HOST, max_length=253)]
"""A name in DNS, or an address (IPv6 without brackets)."""

"""Sequences, or Auto."""

ACCELERATOR = "/gpu"
"""Ends the name of an accelerator among a container's resources, such as nvidia.com/gpu."""
_LEAST_TAPE_BYTES = 64 << 20
_MOST_TAPE_BYTES = 2 << 30


class SecretKeyRef(SpecModel):
    """One key of a Secret in the job's namespace."""

    name: DnsLabel
    """Name of the Secret."""
    key: str = Field(default="kubeconfig", min_length=1, max_length=253)
    """Key in the Secret."""


class RemoteCluster(SpecModel):
    """Another Kubernetes cluster."""

    kubeconfig_secret_ref: SecretKeyRef
    """The Secret that holds the kubeconfig of that cluster."""


class LearnerStorage(SpecModel):
    """A volume for each learner of a pool, which outlives the learner's pods. For jobs in a cluster."""

    size: Size = "10Gi"
    """Size of each PersistentVolumeClaim. Three checkpoints of the inner optimizer need 24 bytes a parameter, 36 with
    ``sync.errorFeedback`` (Int8, Int4, TopK)."""
    class_name: ClassName | None = None
    """StorageClass. Default: the cluster's."""
    access_mode: Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"] = "ReadWriteOnce"
    """ReadWriteOnce, ReadWriteOncePod: if a node stops responding, its learners wait until it is back, is deleted or
    has the out-of-service taint. ReadWriteMany (a shared file system): their pods are replaced."""
    when_deleted: Literal["Delete", "Retain"] = "Delete"
    """Retain: the claims stay when the job is deleted. A later job of that name uses their state only if its syncer
    continues the same training (``syncer.storage.adoptRetained``, a backup)."""
    when_scaled: Literal["Delete", "Retain"] = "Retain"
    """Delete: claims are deleted when the pool shrinks; all of them when the job is suspended or has ended."""


class Pool(SpecModel):
    """Learners on one kind of node."""

    name: DnsLabel
    """Unique in its region."""
    learners: int = Field(default=1, ge=0, le=10_000)
    """Number of learners; the maximum if ``minimumLearners`` is set."""
    minimum_learners: int | None = Field(default=None, ge=0, le=10_000)
    """Makes the pool elastic: it has as many learners as find nodes, from this number to ``learners``. Missing ones do
    not make the job Degraded. Default: ``learners``."""
    excluded_indices: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=10_000)], ...], Field(max_length=64, json_schema_extra=SET)
    ] = ()
    """Indices of learners to leave out, each below ``learners``; the others keep theirs. In a cluster the pods of these
    learners stay Pending without a node. Default: none."""
    fallback_after_seconds: int | None = Field(default=None, ge=10, le=86_400)
    """Seconds that a pod waits for a node before its learner starts in the region's next pool. The pod keeps waiting;
    once it trains, the other one ends. Only in a cluster. Default: pods only wait."""
    certificates_not_before: AwareDatetime | None = None
    """Certificates of this pool's learners that were made before this time are refused and replaced.
    `diloco cluster revoke` sets it. Only in a cluster. Default: none is refused."""
    processes_per_node: int | None = Field(default=None, ge=1, le=64)
    """Processes that are one learner on a node, an accelerator each; they share out ``batchSize``, which must be a
    multiple of their number. Default: the accelerators (``*/gpu``) in the limits of ``resources``, else 1."""
    nodes_per_learner: int = Field(default=1, ge=1, le=256)
    """Nodes, a pod each, that are one learner; started, restarted and given up as one. ``diloco run`` takes one machine
    for all."""
    parallelism: Literal["FSDP", "HSDP", "DDP"] = "FSDP"
    """How the processes of a learner hold the model. FSDP: each a part (fully sharded). HSDP: each node the whole, and
    each of its processes a part. DDP: each process the whole."""
    topology_key: LabelKey | None = Field(default=None, max_length=317)
    """Label of nodes, such as topology.kubernetes.io/zone: all pods of the pool run where it has the same value.
    Default: anywhere."""
    batch_size: int | None = Field(default=None, ge=1, le=BATCH_LIMIT)
    """Sequences per inner step of a learner. Default: ``training.batchSize``."""
    speed: float | None = Field(default=None, ge=0.001, le=1_000_000)
    """Tokens a second of a learner, relative to other pools, of which those without it count as 1. Of what a learner
    reports at most twice that counts. Default: learners are compared within the pool; one without another there counts
    as at most 4 times as fast as those of other pools."""
    image: ImageName | None = None
    """Trainer image for this pool. Default: ``spec.image``."""
    resources: Resources | None = None
    """Container resources. Default requests: 100m cpu, 256Mi memory, and ephemeral-storage for logs and, of a built-in
    model, checkpoints. With any other model request 24 bytes a trained parameter, 36 with ``sync.errorFeedback``
    (Int8, Int4, TopK), and what your code writes."""
    env: Variables = ()
    """Additional environment variables of the learner's container."""
    pod_template: PodTemplate | None = None
    """Additions to the pods' template. Learners prefer nodes and zones with fewer learners, and not the syncer's node,
    unless ``topologySpreadConstraints`` or ``podAntiAffinity`` say otherwise. Give the syncer at least their
    priority."""
    storage: LearnerStorage | None = None
    """A volume for each learner, for its inner optimizer. Default: none; in a new pod the inner optimizer begins
    without moments and warms up."""

    @property
    def processes(self) -> int:
        """Processes of a learner on each of its nodes."""
        if self.processes_per_node is not None:
            return self.processes_per_node
        limits = self.resources.limits if self.resources is not None else {}
        return max(1, sum(int(amount(one)) for name, one in limits.items() if name.endswith(ACCELERATOR)))

    @property
    def ranks(self) -> int:
        """Processes of a learner, on all its nodes."""
        return self.processes * self.nodes_per_learner

    @property
    def parts(self) -> int:
        """Parts of the model that a learner's processes hold; ``model.parallelize`` counts as FSDP."""
        return {"FSDP": self.ranks, "HSDP": self.processes, "DDP": 1}[self.parallelism]

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of its learners, ascending."""
        left_out = frozenset(self.excluded_indices)
        return tuple(index for index in range(self.learners) if index not in left_out)

    @property
    def size(self) -> int:
        """Number of its learners; the most of them if it is elastic."""
        return self.learners - sum(index < self.learners for index in frozenset(self.excluded_indices))

    def batch_of(self, training: TrainingSpec) -> int:
        """Sequences in an inner step of its learners."""
        return training.batch_size if self.batch_size is None else self.batch_size

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
    """Bits or bytes per second that this region's learners together exchange with the syncer, each way, at most, such
    as 500Mbit/s. Default: no limit."""
    pools: Annotated[tuple[Pool, ...], Field(min_length=1, max_length=64), MapBy("name")]
    """Its pools."""


class Storage(SpecModel):
    """The syncer's volume."""

    size: Size = "10Gi"
    """Size of the PersistentVolumeClaim. Checkpoints need 32 bytes a parameter, 48 with sync.downlink BF16,
    Int8 or TopK; with ``syncer.backup`` 40 and 60."""
    class_name: ClassName | None = None
    """StorageClass. Default: the cluster's."""
    access_mode: Literal["ReadWriteOnce", "ReadWriteOncePod"] = "ReadWriteOnce"
    """ReadWriteOncePod: Kubernetes keeps a second pod off the volume; needs a CSI driver that supports it."""
    when_deleted: Literal["Delete", "Retain"] = "Delete"
    """Retain: the claim, with its checkpoints and the finished model, stays when the job is deleted."""
    adopt_retained: bool = False
    """true: continue with the claim that a deleted job of this name has retained. false: such a claim stops the job
    from starting."""


class Tape(SpecModel):
    """The record of the syncer's decisions, for ``diloco replay``."""

    max_size: str | None = Field(default=None, pattern=BOUND, max_length=20)
    """Size limit of all files; the oldest are deleted first. Default: a tenth of ``storage.size``, from 64Mi to 2Gi."""


class Expose(SpecModel):
    """How learners reach the syncer."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer", "External"] = "ClusterIP"
    """ClusterIP: for learners in this cluster. NodePort, LoadBalancer: a Service of that type with the learners' port
    alone. External: your own proxy or tunnel at ``host`` and ``port``, which must not end TLS. Learners send the name
    in the syncer's certificate, JOB.NAMESPACE.syncer.diloco.internal, as SNI."""
    host: Host | None = None
    """NodePort: address or name of nodes. External: address or name of the proxy or tunnel."""
    port: int | None = Field(default=None, ge=1, le=65_535)
    """Port of the external address."""
    annotations: Annotations = Field(default_factory=dict)
    """Annotations of the Service, for example for the load balancer."""
    source_ranges: tuple[AddressRange, ...] = Field(default=(), max_length=64)
    """Addresses from which learners outside the cluster, or the external proxy, may connect, such as 203.0.113.0/24.
    Default: any."""


class SyncerSpec(SpecModel):
    """The process that merges."""

    checkpoint_every_seconds: int = Field(default=1, ge=1, le=86_400)
    """Seconds between checkpoints, each of what was merged since the one before: the most that a crash of the syncer
    loses, beside the time that one takes."""
    max_checkpoints: int = Field(default=2, ge=1, le=100)
    """Checkpoints kept on the volume that share no file with each other, beside the newest one."""
    storage: Storage = Storage()
    """Its volume."""
    tape: Tape = Tape()
    """Its record."""
    backup: Backup | None = None
    """Copies of its checkpoints elsewhere. Default: none."""
    image: ImageName | None = None
    """Trainer image. Default: ``spec.image``, else that of the first pool in this cluster."""
    resources: Resources | None = None
    """Container resources. Default requests: 100m cpu, 256Mi memory, 64Mi ephemeral-storage; enough for a small
    model."""
    env: Variables = ()
    """Additional environment variables of the syncer's container."""
    pod_template: PodTemplate | None = None
    """Additions to the pod's template: placement, priority, service account."""
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
    """Replace: the operator deletes the pod by force if the syncer does not hear from its learner and no single-node
    claim is mounted. Wait: the pod stays until its node is back or you delete it."""
    after_seconds: int = Field(default=60, ge=10, le=86_400)
    """Seconds after its grace period until a pod counts as lost, and until a stopping job no longer waits for its
    learner."""


class FailurePolicy(SpecModel):
    """How failing learners are handled, and when they end the job."""

    max_restarts_per_learner: int | None = Field(default=None, ge=0, le=1_000_000)
    """Restarts of its container after which a learner is given up for good; the job continues without it. Orderly exits
    and new pods (eviction, deletion, lost node) do not count. Default: never."""
    minimum_learners: int = Field(default=0, ge=0, le=10_000)
    """The job fails if fewer learners are left after others were given up. 0: never. Needs
    ``maxRestartsPerLearner``."""
    stuck_seconds: int = Field(default=300, ge=0, le=86_400)
    """Seconds without a step after which a connected learner is restarted, at least 30 of its own steps;
    ``sync.startupSeconds`` before the first. Waiting for fragments and evaluating do not count. 0: never (ours)."""
    quarantine_seconds: int = Field(default=600, ge=1, le=86_400)
    """Seconds for which a learner that diverges again soon after a reset is left out of quorum and merges. Doubles each
    time, up to 64 times as long (ours)."""
    lost_pods: LostPods = LostPods()
    """Pods on nodes that no longer respond. For jobs in a cluster."""
