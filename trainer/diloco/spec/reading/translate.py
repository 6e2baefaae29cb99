"""Translates pydantic's errors for the user: the path as in the manifest, the value, and what is allowed."""

import json
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING

from pydantic import ValidationError

from diloco.spec.base import PUBLISHED_TYPE
from diloco.spec.errors import PartError, Problem
from diloco.spec.job import DiLoCoJob
from diloco.spec.quantities import QuantityError, parse_count
from diloco.spec.reading.elsewhere import ELSEWHERE
from diloco.spec.words import Schema, SchemaReader, listed

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_LONGEST_SHOWN = 60
_MOST_PLACES = 3
_VERDICTS = {
    "literal_error": "is not known",
    "string_pattern_mismatch": "does not fit",
    "string_too_short": "is too short",
    "string_too_long": "is too long",
    "too_short": "is too short",
    "too_long": "is too long",
    "greater_than": "is too small",
    "greater_than_equal": "is too small",
    "less_than": "is too large",
    "less_than_equal": "is too large",
    "finite_number": "is not finite",
}
"""pydantic's error types for a value of the right type."""

_Location = tuple[str | int, ...]


@cache
def job_schema() -> SchemaReader:
    """The schema of the whole manifest."""
    return SchemaReader(DiLoCoJob.model_json_schema())


def translate(error: ValidationError, schema: SchemaReader | None = None, whole: str = "manifest") -> list[Problem]:
    """All problems without duplicates, in the document's order.

    ``schema``: the document's; default: the manifest's. ``whole``: the place of a problem of the whole document.
    """
    reader = schema or job_schema()
    found = (problem for detail in error.errors(include_url=False) for problem in _problems(reader, detail, whole))
    return list(dict.fromkeys(found))


def path_text(location: Iterable[str | int]) -> str:
    """The path as text: ``spec.regions[1].name``."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def _problems(reader: SchemaReader, detail: "ErrorDetails", whole: str) -> Iterator[Problem]:
    location = detail["loc"]
    raised = detail.get("ctx", {}).get("error")
    if isinstance(raised, PartError):
        for problem in raised.problems:
            inner = f".{problem.path}" if problem.path and not problem.path.startswith("[") else problem.path
            yield Problem(f"{path_text(location)}{inner}".lstrip("."), problem.message)
        return
    if detail["type"] == "too_short" and detail["input"]:
        # pydantic counts only valid items; invalid ones have problems of their own.
        return
    yield Problem(path_text(location) or whole, _message(reader, detail, location))


def _message(reader: SchemaReader, detail: "ErrorDetails", location: _Location) -> str:
    node, value, kind = reader.node(location), detail["input"], detail["type"]
    if kind == "missing":
        return f"is missing; use {reader.allowed(node)}"
    if kind == "extra_forbidden":
        return _unknown_field(reader, location)
    if kind.endswith(("_type", "_parsing", "_size")):
        return _wrong_type(reader, node, value)
    if kind in _VERDICTS:
        return f"{_shown(value)} {_VERDICTS[kind]}; use {reader.allowed(node)}"
    return detail["msg"]


def _wrong_type(reader: SchemaReader, node: Schema, value: object) -> str:
    kind = reader.kind(node)
    message = f"{_shown(value)} is not {kind}"
    wanted = node.get("type")
    if wanted == "string" and isinstance(value, bool | int | float):
        return f"{message}; put it in quotes"
    if wanted == "boolean":
        return message
    if wanted == "object" and node.get("properties"):
        return f"{message}; its fields are {listed(node['properties'], 'and')}"
    if wanted in ("integer", "number") and isinstance(value, str) and value.strip("+-").replace(".", "", 1).isdecimal():
        return f"{message}; remove the quotes"
    if wanted == "integer" and isinstance(value, str) and (count := _count(value)) is not None:
        return f"{message}; use {count}"
    return f"{message}; use {reader.allowed(node)}"


def _count(text: str) -> int | None:
    """The integer that people mean by ``5M``."""
    try:
        return parse_count("", text)
    except QuantityError:
        return None


def _unknown_field(reader: SchemaReader, location: _Location) -> str:
    name = _folded(str(location[-1]))
    here = reader.node(location[:-1])
    for known, message in ELSEWHERE.get(here.get("title", ""), {}).items():
        if _folded(known) == name:
            return message
    fields = list(here.get("properties", {}))
    # Wrong capitals and underscores are the most common mistakes.
    folded = {_folded(field): field for field in fields}
    if close := get_close_matches(name, folded, n=1, cutoff=0.7):
        return f"is not a field here; did you mean {folded[close[0]]}?"
    for end in range(len(location) - 1, -1, -1):
        above = location[:end]
        if places := _places(reader, reader.node(above), name):
            # A name that stands in many places says little.
            if len(places) > _MOST_PLACES:
                break
            return f"is not a field here; did you mean {listed(path_text((*above, one)) for one in places)}?"
    return f"is not a field here; use {listed(fields)}"


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _places(reader: SchemaReader, node: Schema, name: str) -> list[str]:
    """Paths from ``node`` to each field of this folded name below it, the nearest first.

    Types of Kubernetes are searched from inside alone: their names say little elsewhere.
    """
    places = list[str]()
    level = [("", node)]
    while level:
        deeper: list[tuple[str, Schema]] = []
        for path, one in level:
            if PUBLISHED_TYPE in one and PUBLISHED_TYPE not in node:
                continue
            for field, schema in one.get("properties", {}).items():
                if _folded(field) == name:
                    places.append(f"{path}{field}")
                resolved = reader.resolved(schema)
                deeper.append((f"{path}{field}.", resolved))
                if "items" in resolved:
                    deeper.append((f"{path}{field}[].", reader.resolved(resolved["items"])))
        level = deeper
    return places


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, float) and value.is_integer():
        # pydantic has turned an integer of the manifest into a float.
        value = int(value)
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
