"""Copies of objects: the virtual clusters make so many that ``copy.deepcopy`` would take most of their time."""

import pickle
from typing import TypeVar

_T = TypeVar("_T")


def copied(value: _T) -> _T:
    """A deep copy."""
    copy: _T = pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    return copy
