"""Limits how many unplanned learners are admitted. Pure.

A pool's processes may start before the syncer sees that the pool has grown, so an id that is not planned is admitted.
But every id costs memory for the rest of the job, and whoever has the pool's certificate can join with any number. So a
pool has at most twice as many learners as are planned. More of them join once the manifest plans them.
"""

from collections import Counter
from collections.abc import Iterable

from diloco.spec.names.learner_ids import pool_of


class Admission:
    """Counts unplanned learners, by pool."""

    def __init__(self, planned: Iterable[str]) -> None:
        """``planned``: the learner ids in the manifest."""
        self._unplanned: set[str] = set()
        self.planned(planned)

    def planned(self, learners: Iterable[str]) -> None:
        """Note that the manifest has changed: its learners no longer count."""
        self._planned = frozenset(learners)
        self._sizes = Counter(map(pool_of, self._planned))
        self._unplanned -= self._planned

    def admitted(self, learner: str) -> None:
        """Note that this learner was admitted: if it is not planned, it counts from now on."""
        if learner not in self._planned:
            self._unplanned.add(learner)

    def problem_with(self, learner: str, waiting: Iterable[str] = ()) -> str | None:
        """Why this learner cannot be admitted now; None: it can. ``waiting``: others that are not decided yet."""
        if learner in self._planned or learner in self._unplanned:
            return None
        pool = pool_of(learner)
        unplanned = self._unplanned.union(waiting) - self._planned
        if sum(pool_of(one) == pool for one in unplanned) < self._sizes[pool]:
            return None
        return (
            f"cannot admit {learner!r}: it is not in the manifest; at most {self._sizes[pool]} such learner(s) of"
            f" {pool} are admitted, as many as the manifest plans"
        )
