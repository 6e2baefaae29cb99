"""What is said of a reason."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Guide:
    """What a reason means, and what to do about it."""

    severity: Literal["Normal", "Warning"]
    """The type of the event that reports it."""
    meaning: str
    action: str
    """What to do. Empty: nothing."""


def normal(meaning: str, action: str = "") -> Guide:
    """A reason that nobody has to act on."""
    return Guide("Normal", meaning, action)


def warning(meaning: str, action: str) -> Guide:
    """A reason to act, or to look."""
    return Guide("Warning", meaning, action)
