"""One way a manifest can be wrong, and what ``diloco`` and an API server say of it."""

import re
from typing import NamedTuple


class Bad(NamedTuple):
    """One way to be wrong."""

    changes: dict[str, object]
    """What is changed in a good manifest."""
    line: str
    """What ``diloco`` prints: the field, a colon, and what is wrong."""
    server: str = ""
    """What an API server says of that field. Empty: it refuses the manifest, and in other words."""
    at: str = ""
    """The field that an API server names, if it is another."""


def wrong(field: str, value: object, says: str, server: str = "", at: str = "") -> Bad:
    """A field that has this value, and what is said of it; a position in a list is a key, as in ``spec.regions.0``."""
    shown = re.sub(r"\.(\d+)", r"[\1]", field)
    return Bad({field: value}, f"{shown}: {says}", server, at)


SAME = "as diloco"
"""The server refuses it by a rule of ours, in CEL, with the same text."""
LEARNERS_POOL = "spec.regions[0].pools[0]"
