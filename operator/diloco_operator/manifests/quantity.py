"""Quantities in the form in which an API server returns them: ``1000m`` is ``1``, ``1024Mi`` is ``1Gi``, 1000 ``1k``.

A quantity in any other form would always look changed. The rules are those of Kubernetes'
apimachinery/pkg/api/resource: no fraction, the smallest whole number, a suffix of the same family as the input, and
nothing finer than a billionth (rounded up).
"""

import math
import re
from fractions import Fraction
from typing import Any, Final

_WRITTEN = re.compile(
    r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?\d{1,3}))?"
)
_DECIMAL: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_LONGEST: Final = 64
"""Characters. API servers keep 19 digits (2^63)."""
_FINEST: Final = -9
"""Powers of ten, of the finest quantity."""
_COARSEST: Final = 18


def canonical(value: Any) -> Any:
    """``value`` as the API server writes it; an invalid quantity is returned unchanged, for the server to refuse."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return value
    text = str(value).strip()
    written = _WRITTEN.fullmatch(text) if len(text) <= _LONGEST else None
    if written is None:
        return value
    amount = Fraction(written["number"])
    suffix, exponent = written["suffix"] or "", written["exponent"]
    if suffix.endswith("i"):
        amount *= 1024 ** _BINARY.index(suffix)
        return _binary(amount)
    amount *= _power_of_ten(int(exponent) if exponent else 3 * _DECIMAL.index(suffix) + _FINEST)
    return _decimal(amount, scientific=exponent is not None)


def canonical_resources(resources: dict[str, Any]) -> dict[str, Any]:
    """A container's ``resources`` with every quantity of ``limits`` and ``requests`` in canonical form."""
    return {
        key: {name: canonical(amount) for name, amount in part.items()}
        if key in ("limits", "requests") and isinstance(part, dict)
        else part
        for key, part in resources.items()
    }


def _power_of_ten(exponent: int) -> Fraction:
    return Fraction(10) ** exponent


def _binary(amount: Fraction) -> str:
    if abs(amount) < 1024 or amount.denominator != 1:
        return _decimal(amount, scientific=False)
    whole, power = amount.numerator, 0
    while whole % 1024 == 0 and power < len(_BINARY) - 1:
        whole, power = whole // 1024, power + 1
    return f"{whole}{_BINARY[power]}"


def _decimal(amount: Fraction, *, scientific: bool) -> str:
    if amount == 0:
        return "0"
    scaled = abs(amount) * _power_of_ten(-_FINEST)
    whole, exponent = math.ceil(scaled), _FINEST
    while whole % 1000 == 0 and exponent < _COARSEST:
        whole, exponent = whole // 1000, exponent + 3
    sign = "-" if amount < 0 else ""
    if scientific:
        return f"{sign}{whole}e{exponent}" if exponent else f"{sign}{whole}"
    return f"{sign}{whole}{_DECIMAL[(exponent - _FINEST) // 3]}"
