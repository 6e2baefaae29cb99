"""Plain values of which very many are made: the events and actions of the engine, and what a simulation passes on."""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

_Class = TypeVar("_Class")


@dataclass_transform(frozen_default=True)
def value(of: type[_Class]) -> type[_Class]:
    """A dataclass with slots that the type checker alone freezes.

    ``frozen=True`` sets each field through a call: an event of eight fields then takes five times as long to make, and
    a simulated day makes tens of millions.
    """
    return dataclass(slots=True, unsafe_hash=True)(of)
