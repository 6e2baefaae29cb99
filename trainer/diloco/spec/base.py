"""The base class of the manifest's models: camelCase in YAML, snake_case in Python, unknown fields refused."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
ENTRYPOINT = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"
HOST_NAME = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$"
HOST = r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*|[0-9a-f]*:[0-9a-f:.]+)$"
ADDRESS_RANGE = r"^([0-9]{1,3}(\.[0-9]{1,3}){3}|[0-9a-f:]+)/[0-9]{1,3}$"
RATE = r"^[1-9][0-9]{0,5}(\.[0-9]{1,3})?[kMG](bit|B)/s$"
QUANTITY = r"^[1-9][0-9]*(Ki|Mi|Gi|Ti|k|M|G|T)?$"
BOUND = r"^[1-9][0-9]{0,8}(Mi|Gi|Ti)$"
BACKUP_URL = (
    r"^((s3|gs)://[a-z0-9][a-z0-9._-]*(/[^?#\x00-\x1f]*)?|(file://)?/[^?#\x00-\x1f]*|[^:/?#\x00-\x1f][^:?#\x00-\x1f]*)$"
)
ENDPOINT_URL = r"^https?://[A-Za-z0-9.\[\]:_-]+(/[^?#@\x00-\x20]*)?$"
BACKUP_NAME = r"^[A-Za-z0-9-]+$"
REASON = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"

PATTERNS_IN_WORDS = {
    DNS_LABEL: "a name of lower-case letters, digits and inner hyphens",
    ENTRYPOINT: "package.module:factory",
    HOST_NAME: "a name in DNS such as syncer.example.com",
    HOST: "a name in DNS or an address, such as syncer.example.com or 203.0.113.7",
    ADDRESS_RANGE: "a range of addresses such as 203.0.113.0/24",
    RATE: "a rate such as 500Mbit/s or 62.5MB/s",
    QUANTITY: "a quantity of bytes such as 10Gi",
    BOUND: "a size from 1Mi on, such as 512Mi or 2Gi",
    BACKUP_URL: "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, file:///PATH or a path",
    ENDPOINT_URL: "an address such as https://minio.example.com:9000",
    BACKUP_NAME: "a name of letters, digits and hyphens",
    REASON: "a word such as WaitingForLearners",
}
"""Descriptions of the fields' patterns, for errors and the reference page."""

_FACTORS: dict[str, int] = {
    **{prefix: 1000**power for power, prefix in enumerate(("", "k", "M", "G", "T"))},
    **{f"{prefix}i": 1024**power for power, prefix in enumerate(("K", "M", "G", "T"), 1)},
}


def bytes_in(quantity: str) -> int:
    """The bytes that a ``QUANTITY`` or a ``BOUND`` means."""
    number = quantity.rstrip("KkMGTi")
    return int(number) * _FACTORS[quantity.removeprefix(number)]


INTEGER_OR_WORD = "x-integer-or-word"
"""Key in a field's JSON schema: the field is an integer within the schema's bounds, or this word."""


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
