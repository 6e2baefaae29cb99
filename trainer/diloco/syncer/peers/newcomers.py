"""How many learners that nobody planned are let in.

A pool's processes may start before the syncer hears that the pool has grown, so an id that is not planned is let in;
but every id costs memory for the life of the job, so only as many are as a job may grow at once. Pure.
"""

from collections.abc import Iterable
from typing import Final

_FEWEST: Final = 64


class Newcomers:
    """Counts them. As many as there are planned learners, and at least some, are let in."""

    def __init__(self, planned: Iterable[str]) -> None:
        """``planned``: ids that the manifest has now."""
        self._planned = frozenset(planned)
        self._unplanned: set[str] = set()

    def planned(self, learners: Iterable[str]) -> None:
        """The manifest has changed: whoever it has now is no newcomer any more."""
        self._planned = frozenset(learners)
        self._unplanned -= self._planned

    def admitted(self, learner: str) -> None:
        """It is in, and will be remembered."""
        if learner not in self._planned:
            self._unplanned.add(learner)

    def problem_with(self, learner: str, waiting: Iterable[str] = ()) -> str | None:
        """Why this learner cannot be let in now; None: it can. ``waiting``: others that nothing was decided about."""
        if learner in self._planned or learner in self._unplanned:
            return None
        most = max(_FEWEST, len(self._planned))
        if len(self._unplanned.union(waiting) - self._planned) < most:
            return None
        return f"no room for {learner} before the manifest has it: {most} learners that it does not have are in already"
