"""Fields that hold an integer, or Auto: then a value is found while the job runs."""

import json
from typing import Any, Final, Literal

from pydantic import PlainValidator, WithJsonSchema

from diloco.spec.base import INTEGER_OR_WORD
from diloco.spec.errors import PartError, Problem

AUTO: Final = "Auto"


def allowed(least: int, most: int) -> str:
    """The end of an error about such a field."""
    return f"use {AUTO} or an integer from {least} to {most}"


def checked(least: int, most: int) -> PlainValidator:
    """Refuses everything but Auto and integers within the bounds, with one problem."""
    wanted = allowed(least, most)

    def check(value: object) -> int | Literal["Auto"]:
        if value == AUTO:
            return "Auto"
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise PartError(Problem("", f"{json.dumps(value, default=str)} is not allowed; {wanted}"))

    return PlainValidator(check)


def schema(least: int, most: int) -> WithJsonSchema:
    """Its JSON schema. A union would give two errors, and structural schemas allow only this one."""
    found: dict[str, Any] = {INTEGER_OR_WORD: AUTO, "minimum": least, "maximum": most}
    return WithJsonSchema(found)
