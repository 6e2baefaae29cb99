"""Error feedback: what an encoding lost is added to the next outer gradient, but only if the lossy one was merged.

A residual is committed only when its outer gradient is merged. If the outer gradient is dropped, its encoding lost
nothing that should be made up for. What is merged while the connection is broken is told with the next admission. Only
where the syncer restarts meanwhile, the outcome stays unknown, and the old residual is kept.
"""

import threading
from collections.abc import Mapping, Sequence

from torch import Tensor


class Residuals:
    """At most one committed and one pending residual per fragment. Tensors are replaced, never written to."""

    def __init__(self, committed: Mapping[int, Tensor] | None = None) -> None:
        """``committed``: residuals (f32, flat, one element a parameter)."""
        self._lock = threading.Lock()
        self._committed = dict(committed or {})
        self._pending: dict[int, tuple[int, Tensor]] = {}
        self._epoch = ""

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
        """Drop everything: another process has used it since, or the learner starts over."""
        with self._lock:
            self._committed.clear()
            self._pending.clear()

    def session_begins(self, epoch: str, versions: Sequence[int], counted_in: Sequence[int]) -> None:
        """Settle what was made while there was no session.

        ``versions`` has each fragment's version, ``counted_in`` the latest one that contains our outer gradient.
        """
        with self._lock:
            if epoch != self._epoch:
                self._epoch = epoch
                self._pending.clear()
        for fragment, (version, counted) in enumerate(zip(versions, counted_in, strict=False)):
            self.outcome(fragment, counted, merged=True)
            self.outcome(fragment, version, merged=False)

    def snapshot(self) -> dict[int, Tensor]:
        """The committed residuals, for a checkpoint; they are never written to again."""
        with self._lock:
            return dict(self._committed)
