"""Parses JSON from files and peers; any invalid or deeply nested text raises one error."""

import json
from typing import Any, Final

MAXIMUM_DEPTH: Final = 100
"""Most objects and lists inside one another: far above what diloco writes."""


class JsonError(ValueError):
    """A text that is not JSON, or is nested too deeply."""


def parse_json(text: bytes | str) -> Any:
    """The value of a JSON text; NaN and infinity are accepted, as Python writes them.

    Raises:
        JsonError: it is not JSON, or has more than ``MAXIMUM_DEPTH`` objects and lists inside one another.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise JsonError(f"not JSON ({error})") from error
    level = [value]
    for _ in range(MAXIMUM_DEPTH + 1):
        level = [inner for outer in level for inner in _within(outer)]
        if not level:
            return value
    raise _too_deep()


def _within(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [one for one in inner if isinstance(one, dict | list)]


def _too_deep() -> JsonError:
    return JsonError(f"not JSON of ours (nested more than {MAXIMUM_DEPTH} deep)")
