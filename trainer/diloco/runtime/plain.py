"""Dataclasses as plain JSON values and back, for tapes and checkpoints. Pydantic does the work, in its strict mode.

Every float comes back to the bit, and those that are not finite are written as Python does (NaN, Infinity).
"""

import json
from functools import cache
from typing import Any, Final, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from diloco.runtime.output import escaped

T = TypeVar("T")

_SHOWN: Final = 60
"""Most characters of a wrong value in an error."""


class PlainError(ValueError):
    """A value is not such a dataclass; the text names the field, its value and what is wrong with it."""

    def __init__(self, text: str, *, unknown: bool = False) -> None:
        super().__init__(text)
        self.unknown = unknown
        """It has a field that this version does not know."""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_plain(value: Any, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The fields of a dataclass and of those in it; they share nothing that can change with it."""
    plain: dict[str, Any] = _adapter(value.__class__).dump_python(value, mode="json", exclude=set(without))
    return plain


def from_plain(kind: type[T], plain: Any) -> T:
    """The dataclass that ``to_plain`` wrote. A field with a default may be missing, as it may be newer than ``plain``.

    Raises:
        PlainError: a field is missing, unknown or of another type. Unknown fields are named first.
    """
    try:
        made: T = _adapter(cast("Any", kind)).validate_json(json.dumps(plain), strict=True, extra="forbid")
    except ValidationError as error:
        raise _named(kind, error) from None
    return made


def _named(kind: type[Any], error: ValidationError) -> PlainError:
    problems = error.errors(include_url=False)
    unknown = [one for one in problems if one["type"] == "unexpected_keyword_argument"]
    first = [*unknown, *problems][0]
    where = ".".join([kind.__name__, *map(str, first["loc"])])
    return PlainError(f"{escaped(where)} is {shown(first['input'])}: {first['msg']}", unknown=bool(unknown))


def shown(value: Any) -> str:
    """The beginning of a value that may be anything, for an error: one printable line."""
    return escaped(repr(value)[:_SHOWN])
