"""Decoupled DiLoCo: train one model on clusters or regions that fail, differ in speed and are far apart.

None of them waits for another.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diloco.learner.session import Session, session

__all__ = ["Session", "session"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # On demand: commands and the operator begin without torch.
    if name in __all__:
        return getattr(import_module("diloco.learner.session"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
