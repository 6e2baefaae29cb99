"""Error feedback: what an encoding lost is added to the next outer gradient, but only if the lossy one was merged.

A residual is committed only when its outer gradient is merged. If the outer gradient is dropped, its encoding lost
nothing that should be made up for. If the outcome stays unknown (the connection broke in between), the old residual is
kept, which is exact if the outer gradient was dropped.
"""

import threading
from collections.abc import Mapping

from torch import Tensor


class Residuals:
    """At most one committed and one pending residual per fragment. Tensors are replaced, never written to."""

    def __init__(self, committed: Mapping[int, Tensor] | None = None) -> None:
        """``committed``: residuals (f32, flat, one element a parameter)."""
        self._lock = threading.Lock()
        self._committed = dict(committed or {})
        self._pending: dict[int, tuple[int, Tensor]] = {}

    def restore(self, committed: Mapping[int, Tensor]) -> None:
        """Take up the residuals of a checkpoint, before the first outer gradient is encoded."""
        with self._lock:
            self._committed = dict(committed)

    def residual(self, fragment: int) -> Tensor | None:
        """What the last merged encoding of the fragment lost; None: nothing yet."""
        with self._lock:
            return self._committed.get(fragment)

    def encoded(self, fragment: int, version: int, residual: Tensor) -> None:
        """Note the residual that an outer gradient for ``version``, about to be sent, leaves if it is merged."""
        with self._lock:
            self._pending[fragment] = (version, residual)

    def outcome(self, fragment: int, version: int, *, merged: bool) -> None:
        """Note that ``version`` of the fragment was made, with or without our outer gradient."""
        with self._lock:
            pending = self._pending.get(fragment)
            if pending is None or pending[0] > version:
                return
            del self._pending[fragment]
            if merged and pending[0] == version:
                self._committed[fragment] = pending[1]

    def forget(self) -> None:
        """Drop what a checkpoint had committed, because another process has used it since."""
        with self._lock:
            self._committed.clear()

    def session_over(self) -> None:
        """Drop what is pending: its outcome will not be reported."""
        with self._lock:
            self._pending.clear()

    def snapshot(self) -> dict[int, Tensor]:
        """The committed residuals, for a checkpoint; they are never written to again."""
        with self._lock:
            return dict(self._committed)
