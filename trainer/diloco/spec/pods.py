"""What a job adds to its pods: image, resources, variables, and a strict part of Kubernetes' PodTemplateSpec."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from diloco.spec.base import BUFFER_SIZES, FREE, MapBy, SpecModel, UniqueBy
from diloco.spec.errors import Problem, refuse
from diloco.spec.kube.rules import resources
from diloco.spec.kube.types import ListOf, Of
from diloco.spec.kube.values import Annotations, ClassName, DnsLabel, Labels, Quantities

Variables = Annotated[tuple[Annotated[dict[str, Any], Of("EnvVar")], ...], Field(max_length=256), MapBy("name")]
_Objects = tuple[dict[str, Any], ...]
ImagePullSecrets = Annotated[_Objects, ListOf("LocalObjectReference", "name")]


class Resources(SpecModel):
    """Resources of a container (Kubernetes' ResourceRequirements)."""

    requests: Quantities = Field(default_factory=dict)
    """Reserved on the node, by resource."""
    limits: Quantities = Field(default_factory=dict)
    """The most that the container may use, with accelerators, by resource."""
    claims: Annotated[_Objects, ListOf("ResourceClaim", "name")] = ()
    """Names of the pod's resource claims (dynamic resource allocation)."""

    @model_validator(mode="after")
    def _together(self) -> Self:
        refuse(resources(self.requests, self.limits))
        return self


class PodMetadata(SpecModel):
    """Labels and annotations beside the operator's."""

    labels: Labels = Field(default_factory=dict)
    """Labels."""
    annotations: Annotations = Field(default_factory=dict)
    """Annotations."""


class OwnContainer(SpecModel):
    """Additions to the container of the learner or the syncer."""

    model_config = ConfigDict(json_schema_extra=FREE)

    name: DnsLabel
    """learner; in the syncer's template, syncer."""
    env_from: Annotated[_Objects, ListOf("EnvFromSource")] = ()
    """Sources of environment variables."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When a node pulls the image."""
    volume_mounts: Annotated[_Objects, ListOf("VolumeMount", "mountPath")] = ()
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

    fs_group: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """Group of the pod's volumes and processes, for a volume of another group. Default: ours, or the platform's."""
    sysctls: Annotated[tuple[Sysctl, ...], Field(max_length=2), UniqueBy("name")] = ()
    """Sizes of TCP's buffers; nodes accept them from Kubernetes 1.32 on."""


class PodSpec(SpecModel):
    """The part of Kubernetes' PodSpec that a user may set."""

    affinity: Annotated[dict[str, Any], Of("Affinity")] = Field(default_factory=dict)
    containers: Annotated[tuple[OwnContainer, ...], Field(max_length=1), MapBy("name")] = ()
    """Additions to the operator's container (learner, syncer): ``envFrom``, ``imagePullPolicy``, ``volumeMounts``."""
    dns_config: Annotated[dict[str, Any], Of("PodDNSConfig")] = Field(default_factory=dict)
    dns_policy: Literal["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"] | None = None
    host_aliases: Annotated[_Objects, ListOf("HostAlias")] = ()
    image_pull_secrets: ImagePullSecrets = ()
    init_containers: Annotated[_Objects, ListOf("Container", "name")] = ()
    """Run first or, with ``restartPolicy: Always``, beside ours. They get our security context."""
    node_selector: Labels = Field(default_factory=dict)
    priority_class_name: ClassName | None = None
    resource_claims: Annotated[_Objects, ListOf("PodResourceClaim", "name")] = ()
    runtime_class_name: ClassName | None = None
    scheduler_name: ClassName | None = None
    scheduling_gates: Annotated[_Objects, ListOf("PodSchedulingGate", "name")] = ()
    security_context: PodSecurity | None = None
    """Additions to the operator's security context."""
    service_account_name: ClassName | None = None
    tolerations: Annotated[_Objects, ListOf("Toleration")] = ()
    topology_spread_constraints: Annotated[_Objects, ListOf("TopologySpreadConstraint")] = ()
    volumes: Annotated[_Objects, ListOf("Volume", "name")] = ()
    """Refused: hostPath, and the job's own Secrets and claim."""

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.dns_policy == "None" and not self.dns_config.get("nameservers"):
            refuse([Problem("dnsConfig.nameservers", "is missing; dnsPolicy None needs at least one")])
        return self


class PodTemplate(SpecModel):
    """Additions to a pod template."""

    metadata: PodMetadata = PodMetadata()
    """Labels and annotations."""
    spec: PodSpec = PodSpec()
    """Fields of Kubernetes' PodSpec, which describes them (``kubectl explain pod.spec``)."""
