"""Checks of the values of a simulated run's conditions, which name the value and what is allowed."""

import math


class ScenarioError(ValueError):
    """An invalid scenario; the text names the part, its value and what is allowed."""


def at_least(lowest: float, name: str, value: float) -> None:
    """Raise ScenarioError unless the value is a number of at least ``lowest``; it may be infinite."""
    if not value >= lowest:
        raise ScenarioError(f"{name} is {value}: it must be at least {lowest:g}")


def above_zero(name: str, value: float) -> None:
    """Raise ScenarioError unless the value is above 0; it may be infinite."""
    if not value > 0:
        raise ScenarioError(f"{name} is {value}: it must be above 0")


def finite(name: str, value: float) -> None:
    """Raise ScenarioError unless the value is at least 0 and finite."""
    if not 0 <= value < math.inf:
        raise ScenarioError(f"{name} is {value}: it must be at least 0, and finite")
