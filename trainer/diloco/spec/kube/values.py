"""Values of Kubernetes' fields: names, labels, images, quantities."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from ipaddress import ip_address, ip_network
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from diloco.spec.base import (
    ADDRESS_RANGE,
    CONTROLLER,
    DNS_LABEL,
    HOST_NAME,
    IMAGE,
    LABEL_KEY,
    LABEL_VALUE,
    PATTERNS_IN_WORDS,
    Quantity,
)
from diloco.spec.errors import PartError, Problem, refuse


@dataclass(frozen=True)
class Fits:
    """A text, or the keys of a mapping, of which the custom resource knows no pattern, to stay short."""

    pattern: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The value's own, and the check."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: Any) -> Any:
        texts = [(value, "")] if isinstance(value, str) else [(key, key) for key in value]
        words = PATTERNS_IN_WORDS[self.pattern]
        refuse(
            Problem(place, f"{json.dumps(text)} does not fit; use {words}")
            for text, place in texts
            if not re.fullmatch(self.pattern, text)
        )
        return value


def _address(text: str) -> str:
    try:
        ip_address(text)
    except ValueError:
        raise _not(text, "an address", "203.0.113.7") from None
    return text


def _address_range(text: str) -> str:
    try:
        ip_network(text, strict=False)
    except ValueError:
        raise _not(text, "a range of addresses", "203.0.113.0/24") from None
    return text


def _not(text: str, kind: str, example: str) -> PartError:
    return PartError(Problem("", f"{json.dumps(text)} is not {kind}; use one such as {example}"))


Address = Annotated[str, AfterValidator(_address)]
"""An IP address."""

AddressRange = Annotated[str, Field(pattern=ADDRESS_RANGE, max_length=43), AfterValidator(_address_range)]
"""Addresses by their prefix (CIDR)."""

DnsLabel = Annotated[str, Field(pattern=DNS_LABEL, max_length=63)]
"""A DNS label (RFC 1123), as Kubernetes wants for names."""

# Upper bounds that Kubernetes itself does not have are ours. An API server accepts a rule of the custom resource only
# if it can estimate the cost of checking the largest possible job, so everything must be bounded.
ImageName = Annotated[str, Field(max_length=1024, pattern=IMAGE)]
"""A container image, by tag or digest."""

ClassName = Annotated[str, Field(max_length=253), Fits(HOST_NAME)]
"""The name of a PriorityClass, RuntimeClass, StorageClass and the like (RFC 1123 subdomain)."""

ControllerName = Annotated[str, Field(max_length=63, pattern=CONTROLLER)]
"""The name of a controller, ``DOMAIN/PATH``."""

LabelKey = Annotated[str, Field(pattern=LABEL_KEY)]
LabelValue = Annotated[str, Field(max_length=63, pattern=LABEL_VALUE)]
Labels = Annotated[dict[str, LabelValue], Field(max_length=64), Fits(LABEL_KEY)]
AnnotationValue = Annotated[str, Field(max_length=4096)]
Annotations = Annotated[dict[str, AnnotationValue], Field(max_length=64), Fits(LABEL_KEY)]
Quantities = Annotated[dict[str, Quantity], Field(max_length=64)]

_UNITS: Final[Mapping[str, Decimal]] = {
    **{
        unit: Decimal(1000) ** power for power, unit in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
    },
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
_LARGEST_EXPONENT: Final = Decimal(30)


def amount(quantity: str) -> Decimal:
    """The number that a quantity means."""
    number = re.match(r"[-+0-9.]+", quantity)
    assert number is not None
    unit = quantity[number.end() :]
    if unit in _UNITS:
        return Decimal(number[0]) * _UNITS[unit]
    return Decimal(number[0]) * Decimal(10) ** Decimal(unit[1:]).min(_LARGEST_EXPONENT).max(-_LARGEST_EXPONENT)
