"""Error feedback: what an encoding lost is added to the next outer gradient, but only if the lossy one was merged.

A residual goes forward only with a merge: had it gone forward for an outer gradient that was dropped, the loss it
stands for would never have happened and would be added from nothing. Where the outcome stays unknown (the connection
broke in between) the old residual stays, which is exact if the outer gradient was dropped.
"""

import threading
from collections.abc import Mapping

from torch import Tensor


class Residuals:
    """Residuals by fragment: one committed and at most one pending each. Tensors are replaced, never written to."""

    def __init__(self, committed: Mapping[int, Tensor] | None = None) -> None:
        """``committed``: residuals (f32, flat, one element a parameter) from a checkpoint."""
        self._lock = threading.Lock()
        self._committed = dict(committed or {})
        self._pending: dict[int, tuple[int, Tensor]] = {}

    def residual(self, fragment: int) -> Tensor | None:
        """What the last merged encoding of the fragment lost; None: nothing yet."""
        with self._lock:
            return self._committed.get(fragment)

    def encoded(self, fragment: int, version: int, residual: Tensor) -> None:
        """An outer gradient for ``version`` is about to be sent and leaves this residual if it is merged."""
        with self._lock:
            self._pending[fragment] = (version, residual)

    def outcome(self, fragment: int, version: int, *, merged: bool) -> None:
        """``version`` of the fragment was made, with or without our outer gradient."""
        with self._lock:
            pending = self._pending.get(fragment)
            if pending is None or pending[0] > version:
                return
            del self._pending[fragment]
            if merged and pending[0] == version:
                self._committed[fragment] = pending[1]

    def forget(self) -> None:
        """What is committed comes from a checkpoint, and another process has used it up since."""
        with self._lock:
            self._committed.clear()

    def session_over(self) -> None:
        """What is pending will have no outcome that we hear of."""
        with self._lock:
            self._pending.clear()

    def snapshot(self) -> dict[int, Tensor]:
        """The committed residuals, for a checkpoint; nobody writes to them any more."""
        with self._lock:
            return dict(self._committed)
