"""What a job adds to its pods: image, resources, variables, and a strict part of Kubernetes' PodTemplateSpec."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from diloco.spec.base import BUFFER_SIZES, DNS_LABEL, FREE, KubernetesObject, MapBy, Quantity, SpecModel, UniqueBy

DnsLabel = Annotated[str, Field(pattern=DNS_LABEL, max_length=63)]
"""A DNS label (RFC 1123), as Kubernetes wants for names."""

# Upper bounds that Kubernetes itself does not have are ours. An API server accepts a rule of the custom resource only
# if it can estimate the cost of checking the largest possible job, so everything must be bounded.
ImageName = Annotated[str, Field(min_length=1, max_length=1024)]
"""A container image, by tag or digest."""

ClassName = Annotated[str, Field(max_length=253)]
"""The name of a PriorityClass, RuntimeClass, StorageClass and the like (RFC 1123 subdomain)."""

LabelValue = Annotated[str, Field(max_length=63)]
AnnotationValue = Annotated[str, Field(max_length=4096)]
Quantities = Annotated[dict[str, Quantity], Field(max_length=64)]
Objects = Annotated[tuple[KubernetesObject, ...], Field(max_length=64)]
NamedObjects = Annotated[tuple[KubernetesObject, ...], Field(max_length=64), UniqueBy("name")]
Variables = Annotated[tuple[KubernetesObject, ...], Field(max_length=256), MapBy("name")]


class Resources(SpecModel):
    """Resources of a container (Kubernetes' ResourceRequirements)."""

    requests: Quantities = Field(default_factory=dict)
    """Reserved on the node, by resource."""
    limits: Quantities = Field(default_factory=dict)
    """The most that the container may use, with accelerators, by resource."""
    claims: NamedObjects = ()
    """Names of the pod's resource claims (dynamic resource allocation)."""


class PodMetadata(SpecModel):
    """Labels and annotations beside the operator's."""

    labels: dict[str, LabelValue] = Field(default_factory=dict, max_length=64)
    """Labels."""
    annotations: dict[str, AnnotationValue] = Field(default_factory=dict, max_length=64)
    """Annotations."""


class OwnContainer(SpecModel):
    """Additions to the container of the learner or the syncer."""

    model_config = ConfigDict(json_schema_extra=FREE)

    name: DnsLabel
    """learner; in the syncer's template, syncer."""
    env_from: Objects = ()
    """Sources of environment variables."""
    volume_mounts: Annotated[tuple[KubernetesObject, ...], Field(max_length=64), UniqueBy("mountPath")] = ()
    """Where the container mounts volumes."""


class Sysctl(SpecModel):
    """The sizes of TCP's buffers, which limit what a long link carries. Safe sysctls from Kubernetes 1.32 on."""

    name: Literal["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"]
    """Buffers for receiving or for sending."""
    value: str = Field(pattern=BUFFER_SIZES, max_length=32)
    """Least, usual and greatest size in bytes."""


class PodSecurity(SpecModel):
    """What of a pod's security context a user may set."""

    model_config = ConfigDict(json_schema_extra=FREE)

    sysctls: Annotated[tuple[Sysctl, ...], Field(max_length=2), UniqueBy("name")] = ()
    """Sizes of TCP's buffers; nodes accept them from Kubernetes 1.32 on."""


class PodSpec(SpecModel):
    """The part of Kubernetes' PodSpec that a user may set."""

    affinity: KubernetesObject = Field(default_factory=dict)
    containers: tuple[OwnContainer, ...] = Field(default=(), max_length=1)
    """Additions to the operator's container (learner, syncer): ``envFrom``, ``volumeMounts``."""
    dns_config: KubernetesObject = Field(default_factory=dict)
    dns_policy: ClassName | None = None
    host_aliases: Objects = ()
    image_pull_secrets: NamedObjects = ()
    init_containers: NamedObjects = ()
    """Run first or, with ``restartPolicy: Always``, beside ours. They get our security context."""
    node_selector: dict[str, LabelValue] = Field(default_factory=dict, max_length=64)
    priority_class_name: ClassName | None = None
    resource_claims: NamedObjects = ()
    runtime_class_name: ClassName | None = None
    scheduler_name: ClassName | None = None
    scheduling_gates: NamedObjects = ()
    security_context: PodSecurity | None = None
    """Additions to the operator's security context."""
    service_account_name: ClassName | None = None
    tolerations: Objects = ()
    topology_spread_constraints: Objects = ()
    volumes: NamedObjects = ()
    """Refused: hostPath, and the job's own Secrets and claim."""


class PodTemplate(SpecModel):
    """Additions to a pod template."""

    metadata: PodMetadata = PodMetadata()
    """Labels and annotations."""
    spec: PodSpec = PodSpec()
    """Fields of Kubernetes' PodSpec, which describes them (``kubectl explain pod.spec``)."""
