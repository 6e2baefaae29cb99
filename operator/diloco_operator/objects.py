"""Readers of small parts of objects, whoever sent them. Pure."""

from collections.abc import Mapping
from typing import Any


def mapping(value: object) -> Mapping[str, Any]:
    """``value`` if it is a mapping; otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def items_of(value: object) -> list[Any]:
    """``value`` if it is a list; otherwise an empty one."""
    return value if isinstance(value, list) else []


def metadata_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object's metadata."""
    return mapping(item.get("metadata"))


def labels_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object's labels."""
    return mapping(metadata_of(item).get("labels"))


def uid_of(item: Mapping[str, Any]) -> str:
    """An object's uid, which every object of an API server has."""
    return str(item["metadata"]["uid"])
