"""Ends a process at once, even if one of its threads never returns."""

import os
import threading
from collections.abc import Callable
from typing import Final

_TELL_SECONDS: Final = 2.0
"""Time to write the log, whose reader may hang as well."""


def end_abruptly(code: int, tell: Callable[[], None], exit_process: Callable[[int], object] = os._exit) -> None:
    """Call ``tell``, but do not wait long for it, and end with exit code ``code``, without cleaning up."""
    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    telling.join(_TELL_SECONDS)
    exit_process(code)
