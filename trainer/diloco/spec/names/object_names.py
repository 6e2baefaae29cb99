"""Names of objects that a user gives as flags and arguments."""

import re

from diloco.spec.base import DNS_LABEL, PATTERNS_IN_WORDS

_LONGEST = 63


class BadNameError(ValueError):
    """A flag or argument is not a name; the text is one line."""


def checked_name(field: str, name: str, kind: str) -> str:
    """``name``, if it is a DNS label (RFC 1123); ``field``: the flag or argument in the error.

    Raises:
        BadNameError: it is not.
    """
    if len(name) > _LONGEST or re.fullmatch(DNS_LABEL, name) is None:
        words = PATTERNS_IN_WORDS[DNS_LABEL]
        raise BadNameError(f"{field}: {name!r} is not the name of a {kind}; use {words}, at most {_LONGEST} characters")
    return name
