"""What a field allows, in words: read from the models' JSON schema, for errors and for the reference page.

It works from the schema alone: a new field needs no change here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from diloco.spec.base import INTEGER_OR_WORD, PATTERNS_IN_WORDS

Schema = dict[str, Any]
"""A JSON schema, or a part of one."""


def listed(names: Iterable[object], last: str = "or") -> str:
    """Joined as ``a, b or c``."""
    words = [str(name) for name in names]
    return f" {last} ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def exactly_one(sources: Iterable[str]) -> str:
    """The text of an error about fields of which one must be given."""
    return f"needs exactly one of {listed(sources, 'and')}"


def not_one(sources: Mapping[str, object]) -> str:
    """The problem with fields of which one must be given; empty if one is."""
    given = [name for name, value in sources.items() if value is not None]
    return "" if len(given) == 1 else f"{exactly_one(sources)}; has {listed(given, 'and') or 'none'}"


def shortlist(names: list[str], limit: int = 5) -> str:
    """Shortened to ``a, b and 3 more``."""
    if len(names) <= limit:
        return ", ".join(names)
    return f"{', '.join(names[:limit])} and {len(names) - limit} more"


@dataclass(frozen=True)
class SchemaReader:
    """Finds and describes fields in a JSON schema that pydantic has generated."""

    root: Schema

    def node(self, path: Iterable[str | int]) -> Schema:
        """The schema of the field at ``path`` (keys and list positions); empty if anything is allowed."""
        node = self.resolved(self.root)
        for part in path:
            if isinstance(part, int):
                node = node.get("items", {})
            else:
                node = node.get("properties", {}).get(part) or _additional(node)
            node = self.resolved(node)
        return node

    def resolved(self, node: Schema) -> Schema:
        """The schema behind references and ``or null``, with the field's own default and description."""
        own: Schema = {key: node[key] for key in ("default", "description") if key in node}
        if "$ref" in node:
            return {**self.resolved(self.root["$defs"][node["$ref"].rpartition("/")[2]]), **own}
        choices = [choice for choice in node.get("anyOf", ()) if choice.get("type") != "null"]
        if choices:
            # Every union in the manifest is of one type with null, and null means the same as leaving the field out.
            return {**self.resolved(choices[0]), **own}
        return node

    def kind(self, node: Schema) -> str:
        """The type without bounds: ``an integer``."""
        names = {
            "boolean": "true or false",
            "integer": "an integer",
            "number": "a number",
            "string": "text",
            "array": "a list",
            "object": "a mapping",
        }
        return names.get(node.get("type", ""), "a value")

    def allowed(self, node: Schema) -> str:
        """Type and bounds: ``an integer from 1 to 4096``, ``RDA or Mean``, ``a mapping with tokens``."""
        if "const" in node or "enum" in node:
            return listed(node.get("enum", [node.get("const")]))
        if INTEGER_OR_WORD in node:
            return f"{node[INTEGER_OR_WORD]} or an integer {_range(node)}"
        wanted, kind, bounds = node.get("type"), self.kind(node), ""
        if wanted == "string":
            return self._text(node)
        if wanted in ("integer", "number"):
            bounds = _range(node)
        elif wanted == "array":
            bounds = _count(node, "minItems", "maxItems", "item")
        elif node.get("required"):
            bounds = f"with {listed(node['required'], 'and')}"
        elif wanted == "object":
            bounds = _count(node, "minProperties", "maxProperties", "key")
        return f"{kind} {bounds}".rstrip()

    def _text(self, node: Schema) -> str:
        if node.get("format") == "date-time":
            return "a time in RFC 3339"
        if "pattern" not in node:
            return f"text {_count(node, 'minLength', 'maxLength', 'character')}".rstrip()
        words = PATTERNS_IN_WORDS[node["pattern"]]
        return f"{words}, at most {node['maxLength']} characters" if "maxLength" in node else words


def _additional(node: Schema) -> Schema:
    additional = node.get("additionalProperties")
    return additional if isinstance(additional, dict) else {}


def _range(node: Schema) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        return f"from {_plain(low)} to {_plain(high)}"
    bounds = [
        f"{word} {_plain(node[key])}"
        for key, word in (
            ("minimum", "of at least"),
            ("exclusiveMinimum", "above"),
            ("maximum", "at most"),
            ("exclusiveMaximum", "below"),
        )
        if key in node
    ]
    return " and ".join(bounds)


def _count(node: Schema, low_key: str, high_key: str, noun: str) -> str:
    low, high = node.get(low_key), node.get(high_key)
    if high is not None:
        return f"of {low or 0} to {high} {noun}s"
    if low is not None:
        return f"of at least {low} {noun}" + ("s" if low != 1 else "")
    return ""


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() and abs(number) < 1e16 else repr(number)
