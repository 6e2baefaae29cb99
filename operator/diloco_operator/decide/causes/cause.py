"""A cause for a job being Degraded, and the order of several by gravity. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.status.text import LONGEST_MESSAGE, one_line

_GRAVITY = {reason: place for place, reason in enumerate(Reason)}


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause for a job being Degraded."""

    reason: Reason
    message: str
    """One line that names the pool, the count and the cause."""


def gravest_first(causes: Iterable[Cause]) -> list[Cause]:
    """Each once, the gravest first, in an order that does not depend on the order of the input."""
    return sorted(set(causes), key=lambda cause: (gravity(cause.reason), cause.message))


def gravity(reason: Reason) -> int:
    """The place of a reason among all, from the gravest on."""
    return _GRAVITY[reason]


def as_grave(reason: Reason, other: Reason) -> bool:
    """Whether the first is at least as grave."""
    return gravity(reason) <= gravity(other)


def joined(causes: list[Cause]) -> str:
    """All of them in one bounded message."""
    return one_line("; ".join(cause.message for cause in causes), LONGEST_MESSAGE)
