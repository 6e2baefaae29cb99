"""How long learners take to recover: from the loss of one to its first merged outer gradient after that, by parts.

A learner is lost when its session ends, or at its last message if it fell silent. It has recovered once an outer
gradient of its new session is in a merge. If it is lost again before that, the same recovery goes on, and ``down``
includes the attempts that failed. A learner's first join is no recovery. Recoveries are not in checkpoints: a syncer
that starts again knows nothing of sessions, and measures only what is lost from then on.

Pure arithmetic. No decision depends on it.
"""

from dataclasses import dataclass, field, replace
from typing import Final

PARTS: Final = ("down", "loading", "stepping", "merging")
"""The parts of a recovery, in order."""
BOUNDS: Final = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0)
"""Upper bounds of the histograms' buckets, in seconds; a last bucket has what is longer."""
_MOST_KEPT: Final = 256
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

    def again(self) -> "Recovering":
        """The session since the loss was lost too."""
        return Recovering(self.lost_at, restarted=self.restarted)

    def joined(self, now: float, incarnation: int, *, same_process: bool) -> "Recovering":
        """A session has begun."""
        return Recovering(self.lost_at, incarnation, self.restarted or not same_process, now)

    def loaded(self, now: float) -> "Recovering":
        """The learner has the model."""
        return replace(self, loaded_at=now) if self.loaded_at is None else self

    def stepped(self, now: float) -> "Recovering":
        """It reported a step."""
        return replace(self, stepped_at=now) if self.stepped_at is None and self.loaded_at is not None else self


@dataclass(frozen=True, slots=True)
class Recovery:
    """A learner that has recovered."""

    learner: str
    restarted: bool
    """A new process took over; False: the same one returned."""
    lost_seconds: float
    """When it was lost, in seconds since the first learner joined."""
    down: float
    """Seconds from the loss until the session that led to the merge began."""
    loading: float
    """From then until it had the model."""
    stepping: float
    """From then until it reported its first step."""
    merging: float
    """From then until an outer gradient of it was merged."""

    @property
    def seconds(self) -> float:
        """From the loss to the merge."""
        return self.down + self.loading + self.stepping + self.merging


@dataclass(slots=True)
class Histogram:
    """Durations of one part, by bucket."""

    total_seconds: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    """By bucket of ``BOUNDS``, not cumulative."""

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.total_seconds += seconds
        self.counts[sum(seconds > bound for bound in BOUNDS)] += 1


@dataclass(slots=True)
class Recoveries:
    """All recoveries since the syncer started."""

    count: int = 0
    latest: list[Recovery] = field(default_factory=list)
    """The latest, oldest first."""
    parts: dict[str, Histogram] = field(default_factory=lambda: {part: Histogram() for part in PARTS})

    def copy(self) -> "Recoveries":
        """A copy that later recoveries do not change."""
        parts = {part: Histogram(one.total_seconds, list(one.counts)) for part, one in self.parts.items()}
        return Recoveries(self.count, list(self.latest), parts)

    def add(self, one: Recovery) -> None:
        """Count a recovery."""
        self.count += 1
        self.latest.append(one)
        del self.latest[:-_MOST_KEPT]
        for part, histogram in self.parts.items():
            histogram.add(getattr(one, part))


def lost(recovering: Recovering | None, at: float) -> Recovering:
    """The recovery of a learner whose session ended at ``at``."""
    return Recovering(at) if recovering is None else recovering.again()


def merged(recovering: Recovering, learner: str, now: float, elapsed: float) -> Recovery:
    """The recovery that a merge at ``now`` ended; ``elapsed``: seconds since the first learner joined, at ``now``."""
    joined = recovering.lost_at if recovering.joined_at is None else recovering.joined_at
    loaded = joined if recovering.loaded_at is None else recovering.loaded_at
    # Work that was done while the learner was away may be merged before its next step is reported.
    stepped = min(now, now if recovering.stepped_at is None else recovering.stepped_at)
    return Recovery(
        learner,
        recovering.restarted,
        lost_seconds=max(0.0, elapsed - (now - recovering.lost_at)),
        down=joined - recovering.lost_at,
        loading=loaded - joined,
        stepping=stepped - loaded,
        merging=now - stepped,
    )
