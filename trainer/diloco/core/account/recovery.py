"""How long learners take to recover: from the loss of one to its first merged outer gradient after that, by parts.

A learner is lost when its session ends, or at its last message if it fell silent. It has recovered once an outer
gradient of its new session is in a merge. If it is lost again before that, the same recovery goes on, and ``down``
includes the attempts that failed. A learner's first join is no recovery. Recoveries are not in checkpoints: a syncer
that starts again knows nothing of sessions, and measures only what is lost from then on.

Pure arithmetic. No decision depends on it.
"""

from dataclasses import dataclass, replace
from typing import Final

from diloco.spec.status.engine import PartStatus, RecoveriesStatus, RecoveryStatus

PARTS: Final = ("down", "loading", "stepping", "merging")
"""The parts of a recovery, in order."""
BOUNDS: Final = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)
"""Upper bounds of the histograms' buckets, in seconds; a last bucket has what is longer."""
_MOST_KEPT: Final = 64
"""Recoveries that are kept in full (ours); the histograms count all."""


@dataclass(frozen=True, slots=True)
class Recovering:
    """A recovery under way. Times are of the engine's clock."""

    lost_at: float
    incarnation: int = 0
    """Of the session since; 0: there is none."""
    restarted: bool = False
    """A new process took over at some point since the loss."""
    joined_at: float | None = None
    loaded_at: float | None = None
    stepped_at: float | None = None

    def joined(self, now: float, incarnation: int, *, same_process: bool) -> "Recovering":
        """A session has begun."""
        return Recovering(self.lost_at, incarnation, self.restarted or not same_process, now)

    def loaded(self, now: float) -> "Recovering":
        """The learner has the model."""
        return replace(self, loaded_at=now) if self.loaded_at is None else self

    def stepped(self, now: float) -> "Recovering":
        """It reported a step."""
        return replace(self, stepped_at=now) if self.stepped_at is None and self.loaded_at is not None else self


NONE_YET: Final = RecoveriesStatus(
    bounds=BOUNDS, parts=tuple(PartStatus(part, 0.0, (0,) * (len(BOUNDS) + 1)) for part in PARTS)
)


def with_recovery(recoveries: RecoveriesStatus, one: RecoveryStatus) -> RecoveriesStatus:
    """All recoveries, with ``one`` more."""
    parts = tuple(_with(part, getattr(one, part.part)) for part in recoveries.parts)
    return replace(recoveries, count=recoveries.count + 1, latest=(*recoveries.latest, one)[-_MOST_KEPT:], parts=parts)


def _with(part: PartStatus, seconds: float) -> PartStatus:
    bucket = sum(seconds > bound for bound in BOUNDS)
    counts = tuple(count + (index == bucket) for index, count in enumerate(part.counts))
    return PartStatus(part.part, part.total_seconds + seconds, counts)


def lost(recovering: Recovering | None, at: float) -> Recovering:
    """The recovery of a learner whose session ended at ``at``; the session since an earlier loss may be lost too."""
    return Recovering(at) if recovering is None else Recovering(recovering.lost_at, restarted=recovering.restarted)


def merged(recovering: Recovering, learner: str, now: float, elapsed: float) -> RecoveryStatus:
    """The recovery that a merge at ``now`` ended; ``elapsed``: seconds since the first learner joined, at ``now``."""
    joined = recovering.lost_at if recovering.joined_at is None else recovering.joined_at
    loaded = joined if recovering.loaded_at is None else recovering.loaded_at
    # Work that was done while the learner was away may be merged before its next step is reported.
    stepped = min(now, now if recovering.stepped_at is None else recovering.stepped_at)
    return RecoveryStatus(
        learner,
        recovering.restarted,
        lost_seconds=max(0.0, elapsed - (now - recovering.lost_at)),
        down=joined - recovering.lost_at,
        loading=loaded - joined,
        stepping=stepped - loaded,
        merging=now - stepped,
    )
