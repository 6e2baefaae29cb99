"""What the manifest's models are made of: their base class (camelCase in YAML, unknown fields refused) and field types.

Keys that begin with ``x-kubernetes-`` in a field's JSON schema are Kubernetes' own, and go into the custom resource.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.annotated_handlers import GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from diloco.spec.errors import Problem, refuse

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
ENTRYPOINT = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"
HOST_NAME = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$"
HOST = r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*|[0-9a-f]*:[0-9a-f:.]+)$"
_OCTET = r"(25[0-5]|(2[0-4]|1[0-9]|[1-9]?)[0-9])"
ADDRESS_RANGE = rf"^({_OCTET}(\.{_OCTET}){{3}}/([12]?[0-9]|3[0-2])|[0-9a-f:]+/(1[01][0-9]|12[0-8]|[1-9]?[0-9]))$"
RATE = r"^[1-9][0-9]{0,5}(\.[0-9]{1,3})?[kMG](bit|B)/s$"
LINK_RATE = r"^(unlimited|[0-9][0-9._e+-]* ?([kMGT]|[KMG]i)?(bit|B)/s)$"
SIZE = r"^[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?$"
_NUMBER = r"(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
QUANTITY = rf"^(\+|-)?{_NUMBER}(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?{_NUMBER}))?$"
"""Kubernetes' own pattern (controller-gen writes it for a resource.Quantity)."""
BUFFER_SIZES = r"^[1-9][0-9]{0,8} [1-9][0-9]{0,8} [1-9][0-9]{0,8}$"
BOUND = r"^[1-9][0-9]{0,8}(Mi|Gi|Ti)$"
BACKUP_URL = (
    r"^((s3|gs)://[a-z0-9][a-z0-9._-]*(/[^?#\x00-\x1f]*)?|(file://)?/[^?#\x00-\x1f]*|[^:/?#\x00-\x1f][^:?#\x00-\x1f]*)$"
)
ENDPOINT_URL = r"^https?://[A-Za-z0-9.\[\]:_-]+(/[^?#@\x00-\x20]*)?$"
BACKUP_NAME = r"^[A-Za-z0-9-]+$"
_LABEL_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_SUBDOMAIN = HOST_NAME[1:-1]
LABEL_KEY = rf"^({_SUBDOMAIN}/)?{_LABEL_NAME}$"
LABEL_VALUE = rf"^({_LABEL_NAME})?$"
CONTROLLER = rf"^{_SUBDOMAIN}/[-A-Za-z0-9/._~%!$&'()*+,;=:]+$"
"""What Kubernetes takes for the name of a controller (KEP-4368)."""
_IMAGE_PART = r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*"
IMAGE = (
    rf"^(([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:[0-9]+)?/)?{_IMAGE_PART}(/{_IMAGE_PART})*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9+._-]+:[0-9a-f]{32,})?$"
)
ENV_NAME = r"^[ -<>-~]+$"
MOUNT_PATH = r"^[^:]+$"
MEDIUM = r"^(Memory|HugePages(-[0-9]+[KMG]i)?)?$"
REASON = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"

PATTERNS_IN_WORDS = {
    DNS_LABEL: "a name of lower-case letters, digits and inner hyphens",
    ENTRYPOINT: "package.module:factory",
    HOST_NAME: "a name in DNS such as syncer.example.com",
    HOST: "a name in DNS or an address, such as syncer.example.com or 203.0.113.7",
    ADDRESS_RANGE: "a range of addresses such as 203.0.113.0/24",
    RATE: "a rate such as 500Mbit/s or 62.5MB/s",
    LINK_RATE: "a rate such as 500Mbit/s or 62.5MB/s, or unlimited",
    SIZE: "a quantity of bytes such as 10Gi",
    QUANTITY: "a quantity such as 500m or 16Gi",
    BUFFER_SIZES: "three sizes in bytes, the smallest first, such as 4096 131072 67108864",
    BOUND: "a size from 1Mi on, such as 512Mi or 2Gi",
    BACKUP_URL: "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, file:///PATH or a path",
    ENDPOINT_URL: "an address such as https://minio.example.com:9000",
    BACKUP_NAME: "a name of letters, digits and hyphens",
    LABEL_KEY: "a key such as team or example.com/team",
    LABEL_VALUE: "letters, digits, inner hyphens, underscores and dots",
    CONTROLLER: "a domain and a path such as diloco.dev/operator",
    IMAGE: "an image such as registry.example.com/team/trainer:1.0",
    ENV_NAME: "a name of printable characters other than =",
    MOUNT_PATH: "a path without a colon, such as /data",
    MEDIUM: "Memory, HugePages or HugePages-SIZE",
    REASON: "a word such as WaitingForLearners",
}
"""Descriptions of the fields' patterns, for errors and the reference page."""

_FACTORS: dict[str, int] = {
    **{prefix: 1000**power for power, prefix in enumerate(("", "k", "M", "G", "T"))},
    **{f"{prefix}i": 1024**power for power, prefix in enumerate(("K", "M", "G", "T"), 1)},
}


def bytes_in(quantity: str) -> int:
    """The bytes that a ``SIZE`` or a ``BOUND`` means."""
    number = quantity.rstrip("KkMGTi")
    return int(number) * _FACTORS[quantity.removeprefix(number)]


INTEGER_OR_WORD = "x-integer-or-word"
"""Key in a field's JSON schema: the field is an integer within the schema's bounds, or this word."""
INT_OR_STRING = "x-kubernetes-int-or-string"
MAP_KEYS = "x-kubernetes-list-map-keys"
FREE: Final[dict[str, Any]] = {"x-kubernetes-preserve-unknown-fields": True}
"""An object that the API server does not check, as its schema would be too long; ``diloco`` and the operator do."""
PUBLISHED_TYPE = "x-published-type"
"""Key in a JSON schema: it is a type that Kubernetes publishes and describes."""
SET: Final[dict[str, Any]] = {"x-kubernetes-list-type": "set"}
"""A list in which each item stands once."""


def _as_text(value: object) -> object:
    return str(value) if type(value) is int else value


Size = Annotated[
    str,
    Field(pattern=SIZE, max_length=20, json_schema_extra={INT_OR_STRING: True}),
    BeforeValidator(_as_text),
]
"""Bytes, as text or as an integer."""

Quantity = Annotated[
    str,
    Field(pattern=QUANTITY, max_length=64, json_schema_extra={INT_OR_STRING: True}),
    BeforeValidator(_as_text),
]
"""Kubernetes' resource.Quantity."""


@dataclass(frozen=True)
class UniqueBy:
    """A list whose items each have a text of their own in one field."""

    key: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The list's own, and the check."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, items: Sequence[Any]) -> Sequence[Any]:
        refuse(self._problems(items))
        return items

    def _problems(self, items: Sequence[Any]) -> Iterator[Problem]:
        seen = set[str]()
        for index, item in enumerate(items):
            value = item.get(self.key) if isinstance(item, dict) else getattr(item, self.key)
            place = f"[{index}].{self.key}"
            if value is None:
                yield Problem(place, "is missing; use text")
            elif not isinstance(value, str):
                yield Problem(place, f"{value} is not text; put it in quotes")
            elif value in seen:
                yield Problem(place, f"{value} is there already; use each {self.key} once")
            else:
                seen.add(value)


@dataclass(frozen=True)
class MapBy(UniqueBy):
    """Such a list that is merged item by item when it is applied."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The list's own, marked."""
        return {**handler(schema), "x-kubernetes-list-type": "map", MAP_KEYS: [self.key]}


class SpecModel(BaseModel):
    """A part of the manifest. Immutable, so that threads can share a job."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )
