"""Limits how many unplanned learners are admitted. Pure.

A pool's processes may start before the syncer sees that the pool has grown, so an id that is not planned is admitted.
But every id costs memory for the rest of the job, so only as many are admitted as a job may grow by at once.
"""

from collections.abc import Iterable
from typing import Final

_FEWEST: Final = 64


class Admission:
    """Counts unplanned learners. As many as there are planned ones are admitted, and never fewer than a minimum."""

    def __init__(self, planned: Iterable[str]) -> None:
        """``planned``: the learner ids in the manifest."""
        self._planned = frozenset(planned)
        self._unplanned: set[str] = set()

    def planned(self, learners: Iterable[str]) -> None:
        """Note that the manifest has changed: its learners no longer count."""
        self._planned = frozenset(learners)
        self._unplanned -= self._planned

    def admitted(self, learner: str) -> None:
        """Note that this learner was admitted: if it is not planned, it counts from now on."""
        if learner not in self._planned:
            self._unplanned.add(learner)

    def problem_with(self, learner: str, waiting: Iterable[str] = ()) -> str | None:
        """Why this learner cannot be admitted now; None: it can. ``waiting``: others that are not decided yet."""
        if learner in self._planned or learner in self._unplanned:
            return None
        most = max(_FEWEST, len(self._planned))
        if len(self._unplanned.union(waiting) - self._planned) < most:
            return None
        return f"cannot admit {learner!r}: it is not in the manifest; the limit of {most} such ids is reached"
