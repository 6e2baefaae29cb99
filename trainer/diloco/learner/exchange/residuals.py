"""Error feedback: what an encoding lost is added to the next outer gradient, but only if the lossy one was merged.

A residual is committed only when its outer gradient is merged. If the outer gradient is dropped, its encoding lost
nothing that should be made up for. What is merged while the connection is broken is told with the next admission.

A residual holds only as long as no later outer gradient of this learner was merged, because that one contains it. So
it keeps its version: one from a checkpoint, or from before the syncer fell back to its own, is dropped unless the
syncer says that this version is the latest with an outer gradient of ours.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Residual(NamedTuple):
    """What the encoding of one outer gradient lost."""

    version: int
    """The version of the fragment that contains the outer gradient."""
    values: "Tensor"
    """f32, flat, one element a parameter."""


class Residuals:
    """At most one committed and one pending residual per fragment. Tensors are replaced, never written to."""

    def __init__(self, committed: Mapping[int, Residual] | None = None) -> None:
        self._lock = threading.Lock()
        self._committed = dict(committed or {})
        self._pending: dict[int, Residual] = {}
        self._epoch = ""
        self._counted_in: Sequence[int] = ()

    def restore(self, committed: Mapping[int, Residual]) -> None:
        """Take up the residuals of a checkpoint that still hold, before the first outer gradient is encoded."""
        with self._lock:
            self._committed = dict(committed)
            self._drop_used_up()

    def residual(self, fragment: int) -> "Tensor | None":
        """What the last merged encoding of the fragment lost; None: nothing yet."""
        with self._lock:
            found = self._committed.get(fragment)
            return None if found is None else found.values

    def encoded(self, fragment: int, version: int, residual: "Tensor") -> None:
        """Note the residual that an outer gradient for ``version``, about to be sent, leaves if it is merged."""
        with self._lock:
            self._pending[fragment] = Residual(version, residual)

    def outcome(self, fragment: int, version: int, *, merged: bool) -> None:
        """Note that ``version`` of the fragment was made, with or without our outer gradient."""
        with self._lock:
            self._settle(fragment, version, merged=merged)

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
            for fragment, (version, counted) in enumerate(zip(versions, counted_in, strict=False)):
                self._settle(fragment, counted, merged=True)
                self._settle(fragment, version, merged=False)
            if epoch != self._epoch:  # what the syncer was sent before, it no longer has
                self._epoch = epoch
                self._pending.clear()
            self._counted_in = tuple(counted_in)
            self._drop_used_up()

    def snapshot(self) -> dict[int, Residual]:
        """The committed residuals, for a checkpoint; they are never written to again."""
        with self._lock:
            return dict(self._committed)

    def _settle(self, fragment: int, version: int, *, merged: bool) -> None:
        pending = self._pending.get(fragment)
        if pending is None or pending.version > version:
            return
        del self._pending[fragment]
        if merged and pending.version == version:
            self._committed[fragment] = pending

    def _drop_used_up(self) -> None:
        for fragment, counted in enumerate(self._counted_in):
            if fragment in self._committed and self._committed[fragment].version != counted:
                del self._committed[fragment]
