"""Converts a model's JSON schema, as pydantic writes it, to the structural schema that a custom resource needs.

Kubernetes accepts a part of OpenAPI 3.0: no references, no unions, no null (the API server treats it as absent),
exclusive bounds as flags
(https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/, "Specifying a
structural schema"). Other modules add rules.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from diloco.spec.base import FREE, INT_OR_STRING, INTEGER_OR_WORD, MAP_KEYS
from diloco.spec.words import Schema, SchemaReader

_KEPT = (
    "type", "format", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    "minProperties", "maxProperties", "x-kubernetes-list-type", MAP_KEYS, INT_OR_STRING,
)  # fmt: skip
_LONGEST_WORD = 32
"""Bound for a word, as the API server must be able to estimate the cost of a rule on it."""
_LONGEST_KEY = 1024
"""The same for the key of an item that is passed on unchanged."""
_RESERVED = re.compile(
    r"\.(as|break|const|continue|else|for|function|if|import|let|loop|package|namespace|return|var|void|while)\b"
)
"""Fields whose names are CEL's own words; in a rule they have underscores around them."""


@dataclass(frozen=True)
class StructuralSchema:
    """Builds structural schemas from what a reader returns."""

    reader: SchemaReader
    defaults: bool
    """Whether the API server fills in defaults: in a spec, but for items of lists, it does; in a status it should
    not."""

    def of(self, node: Schema) -> Schema:
        """The structural schema of ``node``, references and unions with null resolved."""
        node = self.reader.resolved(node)
        made: Schema = {}
        if "description" in node:
            made["description"] = " ".join(node["description"].replace("``", "`").split())
        if INTEGER_OR_WORD in node:  # the word and the bounds are checked by rules: `crd_rules`
            return {**made, INT_OR_STRING: True, "maxLength": _LONGEST_WORD, **self._default(node)}
        made |= {key: node[key] for key in _KEPT if key in node}
        if "const" in node:
            made["enum"] = [node["const"]]
        made |= _exclusive_bounds(node)
        if INT_OR_STRING in made:
            del made["type"]
        made |= self._default(node)
        made |= self._inner(node)
        return made

    def _default(self, node: Schema) -> Schema:
        default = node.get("default")
        # An empty default is left out, to keep stored objects readable.
        if not self.defaults or default in (None, [], {}, ""):
            return {}
        # An empty object is filled in from its own fields' defaults, so each default is written once.
        return {"default": {} if "properties" in node else default}

    def _inner(self, node: Schema) -> Schema:
        if node.get("type") == "array":
            # Argo CD and client-side apply compare and replace lists whole. With a default in an item, what is stored
            # would differ from what was applied for ever.
            items = replace(self, defaults=False).of(node["items"])
            return {"items": _with_keys(items, node.get(MAP_KEYS, ()))}
        if node.get("type") != "object":
            return {}
        if FREE.items() <= node.items():
            return FREE
        if "properties" in node:
            properties = {name: self._field(field) for name, field in node["properties"].items()}
            required = {"required": list(node["required"])} if node.get("required") else {}
            return {**required, "properties": properties}
        values = node.get("additionalProperties")
        if isinstance(values, dict):
            return {"additionalProperties": self.of(values)}
        return FREE

    def _field(self, field: Schema) -> Schema:
        node = self.reader.resolved(field)
        # Written as {} and filled in, an optional object would become null once client-side apply, which owns all that
        # was filled in, is followed by server-side apply, which takes it away.
        may_be_empty = node.get("default", ...) is None and not node.get("required")
        return (replace(self, defaults=False) if may_be_empty else self).of(field)


def _with_keys(item: Schema, keys: Iterable[str]) -> Schema:
    """An item that is passed on unchanged, with the fields that it is told apart by."""
    if not keys or "properties" in item:
        return item
    properties = {key: {"type": "string", "maxLength": _LONGEST_KEY} for key in keys}
    return {**item, "required": list(keys), "properties": properties}


def _exclusive_bounds(node: Schema) -> Schema:
    made: Schema = {}
    for bound in ("Minimum", "Maximum"):
        if f"exclusive{bound}" in node:
            made |= {bound.lower(): node[f"exclusive{bound}"], f"exclusive{bound}": True}
    return made


def at(schema: Schema, path: str) -> Schema:
    """The part of a structural schema at ``path``: ``spec.regions[].pools[]``; the whole for an empty path.

    Raises:
        KeyError: there is no such part.
    """
    node = schema
    for part in filter(None, path.split(".")):
        node = node["properties"][part.removesuffix("[]")]
        if part.endswith("[]"):
            node = node["items"]
    return node


def fields(node: Schema) -> Iterator[tuple[str, Schema, bool]]:
    """For each field of an object's schema: name, schema, and whether it is always present (required or by default)."""
    required = node.get("required", ())
    for name, field in node.get("properties", {}).items():
        yield name, field, name in required or "default" in field


def add_rules(node: Schema, rules: list[dict[str, Any]]) -> None:
    """Append CEL rules to those of a part of a structural schema."""
    if rules:
        escaped = [{**one, "rule": _RESERVED.sub(r".__\1__", one["rule"])} for one in rules]
        node.setdefault("x-kubernetes-validations", []).extend(escaped)
