"""Kubernetes' types, as it publishes them, for fields of the manifest that are passed on to pods unchanged.

A field that a type does not have, or a value of another type, is a problem at any depth. What the published schema says
only in its descriptions (words, bounds, patterns) stands here.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal, NotRequired, Required

from pydantic import AfterValidator, ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema
from typing_extensions import TypedDict

from diloco.spec.base import ENV_NAME, FREE, INT_OR_STRING, MEDIUM, MOUNT_PATH, PUBLISHED_TYPE, MapBy, Quantity
from diloco.spec.errors import Problem, refuse
from diloco.spec.kube.fields import PUBLISHED
from diloco.spec.kube.rules import RULES, Rule
from diloco.spec.kube.values import Address, ClassName, DnsLabel, ImageName, LabelKey, Labels, LabelValue, Quantities

_Port = Annotated[int, Field(ge=1, le=65_535)]
_Weight = Annotated[int, Field(ge=1, le=100)]
_Positive = Annotated[int, Field(ge=1)]
_Mode = Annotated[int, Field(ge=0, le=0o777)]
_PullPolicy = Literal["Always", "IfNotPresent", "Never"]
_Honoured = Literal["Honor", "Ignore"]
_AccessModes = list[Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]]

_typed_dict: Any = TypedDict  # the fields are known only when it is called


def _integer_or_text(value: object) -> object:
    if type(value) not in (int, str):
        refuse([Problem("", f"{json.dumps(value)} is neither an integer nor text; use a port's number or name")])
    return value


_KINDS: Final[Mapping[str, Any]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "IntOrString": Annotated[Any, Field(json_schema_extra={INT_OR_STRING: True}), AfterValidator(_integer_or_text)],
}
_REFINED: Final[Mapping[str, Any]] = {
    "ConfigMapVolumeSource.defaultMode": _Mode,
    "Container.image": ImageName,
    "Container.imagePullPolicy": _PullPolicy,
    "Container.name": DnsLabel,
    "Container.restartPolicy": Literal["Always", "Never", "OnFailure"],
    "Container.terminationMessagePolicy": Literal["File", "FallbackToLogsOnError"],
    "ContainerPort.containerPort": _Port,
    "ContainerPort.protocol": Literal["TCP", "UDP", "SCTP"],
    "EmptyDirVolumeSource.medium": Annotated[str, Field(pattern=MEDIUM)],
    "EmptyDirVolumeSource.sizeLimit": Quantity,
    "EnvVar.name": Annotated[str, Field(pattern=ENV_NAME)],
    "GRPCAction.port": _Port,
    "HTTPGetAction.scheme": Literal["HTTP", "HTTPS"],
    "HostAlias.ip": Address,
    "ImageVolumeSource.pullPolicy": _PullPolicy,
    "KeyToPath.mode": _Mode,
    "LabelSelector.matchLabels": Labels,
    "LabelSelectorRequirement.key": LabelKey,
    "LabelSelectorRequirement.operator": Literal["In", "NotIn", "Exists", "DoesNotExist"],
    "LabelSelectorRequirement.values": list[LabelValue],
    "NodeSelectorRequirement.key": LabelKey,
    "NodeSelectorRequirement.operator": Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"],
    "ObjectMeta.labels": Labels,
    "PersistentVolumeClaimSpec.accessModes": _AccessModes,
    "PersistentVolumeClaimSpec.storageClassName": ClassName,
    "PersistentVolumeClaimSpec.volumeMode": Literal["Filesystem", "Block"],
    "PersistentVolumeClaimVolumeSource.claimName": ClassName,
    "PodDNSConfig.nameservers": list[Address],
    "PodResourceClaim.name": DnsLabel,
    "PreferredSchedulingTerm.weight": _Weight,
    "ProjectedVolumeSource.defaultMode": _Mode,
    "ResourceFieldSelector.divisor": Quantity,
    "ResourceRequirements.limits": Quantities,
    "ResourceRequirements.requests": Quantities,
    "SecretVolumeSource.defaultMode": _Mode,
    "Toleration.effect": Literal["NoSchedule", "PreferNoSchedule", "NoExecute"],
    "Toleration.key": LabelKey,
    "Toleration.operator": Literal["Exists", "Equal", "Lt", "Gt"],
    "TopologySpreadConstraint.maxSkew": _Positive,
    "TopologySpreadConstraint.minDomains": _Positive,
    "TopologySpreadConstraint.nodeAffinityPolicy": _Honoured,
    "TopologySpreadConstraint.nodeTaintsPolicy": _Honoured,
    "TopologySpreadConstraint.whenUnsatisfiable": Literal["DoNotSchedule", "ScheduleAnyway"],
    "Volume.name": DnsLabel,
    "VolumeMount.mountPath": Annotated[str, Field(pattern=MOUNT_PATH)],
    "VolumeMount.mountPropagation": Literal["None", "HostToContainer", "Bidirectional"],
    "VolumeResourceRequirements.limits": Quantities,
    "VolumeResourceRequirements.requests": Quantities,
    "WeightedPodAffinityTerm.weight": _Weight,
}
_ALSO_REQUIRED: Final = {
    "ConfigMapEnvSource.name",
    "ConfigMapKeySelector.name",
    "Container.image",
    "LocalObjectReference.name",
    "SecretEnvSource.name",
    "SecretKeySelector.name",
}
_FIELDS: Final[Mapping[str, str]] = {
    name: fields
    for name, _, fields in (one.partition(": ") for one in PUBLISHED.replace("\n  ", " ").split("\n"))
    if name
}


@dataclass(frozen=True)
class Of:
    """A mapping of this type of Kubernetes. It is passed on without nulls and with quantities as text."""

    name: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """That of the type."""
        del source
        return core_schema.no_info_before_validator_function(_without_nulls, handler.generate_schema(_type(self.name)))


@dataclass(frozen=True)
class ListOf(Of):
    """A list of such mappings; if ``key`` names a field, each has a text of its own there, and they merge by it."""

    key: str = ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """That of the list."""
        del source
        rules = [MapBy(self.key)] if self.key else []
        return handler.generate_schema(
            Annotated[tuple[Annotated[dict[str, Any], Of(self.name)], ...], Field(max_length=64), *rules]
        )


def _without_nulls(value: Any) -> Any:
    """In Kubernetes, null means that a field is left out."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


@cache
def _type(name: str) -> Any:
    fields = dict[str, Any]()
    for one in _FIELDS[name].split():
        field, _, kind = one.partition("=")
        place = f"{name}.{field.rstrip('!')}"
        needed = Required if field.endswith("!") or place in _ALSO_REQUIRED else NotRequired
        fields[field.rstrip("!")] = needed[_REFINED.get(place) or _kind(kind)]
    made = _typed_dict(name, fields)
    made.__pydantic_config__ = ConfigDict(extra="forbid", json_schema_extra={**FREE, PUBLISHED_TYPE: name})
    return Annotated[made, AfterValidator(_checked_by(RULES[name]))] if name in RULES else made


def _kind(words: str) -> Any:
    if words.startswith("["):
        return list[_kind(words[1:-1])]  # type: ignore[misc]
    if words.startswith("{"):
        return dict[str, _kind(words[1:-1])]  # type: ignore[misc]
    return _KINDS.get(words) or _type(words)


def _checked_by(rule: Rule) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        refuse(rule(value))
        return value

    return checked
