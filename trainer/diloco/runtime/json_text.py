"""Parses JSON from files and peers; any invalid or deeply nested text raises one error."""

from typing import Any

from pydantic_core import from_json


class JsonError(ValueError):
    """A text that is not JSON, or is nested too deeply."""


def parse_json(text: bytes | str) -> Any:
    """The value of a JSON text; NaN and infinity are accepted, as Python writes them.

    Raises:
        JsonError: it is not JSON, or has more than 200 objects and lists inside one another.
    """
    try:
        return from_json(text)
    except ValueError as error:
        raise JsonError(f"not JSON ({error})") from error
