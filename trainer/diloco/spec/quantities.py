"""Parses rates, durations and counts with units: ``100Mbit/s``, ``80ms``, ``1.3B``. Every flag is read by this.

Only the spelling distinguishes bits from bytes, so a rate without a unit, or with an ambiguous one (Mb/s, Mbps, MBPS),
is refused with the spelling to use.
"""

import math
import re
from typing import Final

UNLIMITED: Final = "unlimited"
"""An unlimited rate."""


class QuantityError(ValueError):
    """Not such a quantity; the text names the argument, its value, and what to give instead."""


_PREFIXES: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_RATE_UNITS: Final = {
    **{f"{prefix}bit/s": factor / 8 for prefix, factor in _PREFIXES.items() if not prefix.endswith("i")},
    **{f"{prefix}B/s": factor for prefix, factor in _PREFIXES.items()},
}
_DURATION_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTE_UNITS: Final = {"MB": 10**6, "GB": 10**9, "MiB": 2**20, "GiB": 2**30}
_COUNT_UNITS: Final = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_NUMBER: Final = re.compile(r"((?:[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?|\.[0-9]+)(?:e[+-]?[0-9]+)?)\s*(.*)", re.ASCII)
_DAY_SECONDS: Final = 86_400.0
_LEAST: Final = 1e-9
"""Smallest rate in bytes per second and smallest duration in seconds (ours): what is divided by it stays finite."""


def parse_rate(field: str, text: str) -> float:
    """Bytes per second; infinite for ``unlimited``. ``field``: the name of the argument in errors.

    Raises:
        QuantityError: not a number above 0, or without a unit of bits or bytes per second.
    """
    if text.strip() == UNLIMITED:
        return math.inf
    number, unit = _split(field, text, "a rate")
    if unit not in _RATE_UNITS:
        problem = f"has the unit {unit!r}, which is not a unit of rates" if unit else "is a rate without a unit"
        raise QuantityError(
            f"{field}: {text!r} {problem}; use bits or bytes per second, such as {_plain(number)}Mbit/s or "
            f"{_plain(number / 8)}MB/s, which are the same"
        )
    return _positive(field, text, number * _RATE_UNITS[unit], "100Mbit/s, 12.5MB/s or unlimited")


def parse_duration(
    field: str, text: str, *, bare_seconds: bool = False, longest_seconds: float = _DAY_SECONDS
) -> float:
    """Seconds. ``bare_seconds``: a number without a unit is in seconds, as the flag's name says.

    Raises:
        QuantityError: not a number above 0, or without a unit of time.
    """
    number, unit = _split(field, text, "a duration")
    if bare_seconds and not unit:
        unit = "s"
    if unit not in _DURATION_UNITS:
        problem = f"has the unit {unit!r}, which is not a unit of time" if unit else "is a duration without a unit"
        raise QuantityError(f"{field}: {text!r} {problem}; use {', '.join(_DURATION_UNITS)}, such as {_plain(number)}s")
    seconds = _positive(field, text, number * _DURATION_UNITS[unit], "10ms or 0.5s")
    if seconds > longest_seconds:
        raise QuantityError(f"{field}: {text!r} is too long; use at most {longest_seconds / 3600:g}h")
    return seconds


def parse_count(field: str, text: str) -> int:
    """A whole number above 0: ``124000000``, ``124_000_000``, ``124M``, ``1.3B``.

    Raises:
        QuantityError: it is anything else.
    """
    number, unit = _split(field, text, "a number")
    if unit not in _COUNT_UNITS:
        raise QuantityError(f"{field}: {text!r} has the unit {unit!r}; use a number, with k, M, B or T as its suffix")
    count = _positive(field, text, number * _COUNT_UNITS[unit], "a number such as 124000000 or 1.3B", least=1)
    return round(count)


def parse_bytes(field: str, text: str) -> int:
    """Bytes: ``80GiB``, ``80GB``, ``512MiB``.

    Raises:
        QuantityError: it is anything else.
    """
    number, unit = _split(field, text, "a size")
    if unit not in _BYTE_UNITS:
        raise QuantityError(f"{field}: {text!r} has the unit {unit!r}; use {', '.join(_BYTE_UNITS)}, such as 80GiB")
    return round(_positive(field, text, number * _BYTE_UNITS[unit], "a size such as 80GiB", least=1))


def _split(field: str, text: str, kind: str) -> tuple[float, str]:
    """The number and the unit that follows it."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise QuantityError(f"{field}: {text!r} is not {kind}; use digits and a unit, {_EXAMPLES[kind]}")
    return float(found[1]), found[2]


_EXAMPLES: Final = {
    "a rate": "such as 100Mbit/s or 12.5MB/s",
    "a duration": "such as 10ms or 0.5s",
    "a number": "such as 124M or 1.3B",
    "a size": "such as 80GiB",
}


def _positive(field: str, text: str, value: float, use: str, *, least: float = _LEAST) -> float:
    if not least <= value < math.inf:
        raise QuantityError(f"{field}: {text!r} is zero, too small or too large; use {use}")
    return value


def _plain(number: float) -> str:
    return f"{number:.15g}"
