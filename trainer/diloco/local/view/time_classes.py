"""Names and meanings of the classes of a learner's time, and their shares of the allotted time. Pure.

``core.account.time_class`` defines the classes; the texts here are for people.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum
from typing import Final

from diloco.core.account.time_class import COMPUTING, TimeClass
from diloco.local.view.units import percent_text

TimeShares = Mapping[TimeClass, float]
"""Share of the allotted time by class; it has every class, and the shares add up to 1. Empty: no time was given."""


_LEAST_TOLD: Final = 0.005


@dataclass(frozen=True, slots=True)
class Words:
    """Name and meaning of a class."""

    title: str
    meaning: str


WORDS: Final[Mapping[TimeClass, Words]] = {
    TimeClass.MERGED: Words("merged", "inner steps that are in the global model"),
    TimeClass.OVERWRITTEN: Words(
        "overwritten", "steps made between the capture of an outer gradient and the swap-in of its merge"
    ),
    TimeClass.LATE: Words(
        "too late", "steps left out of a merge: they came too late, or were older than sync.maxVersionLag allows"
    ),
    TimeClass.LOST: Words(
        "lost",
        "steps lost when a process or session ended or the syncer restarted, or whose values could not be merged",
    ),
    TimeClass.PENDING: Words("pending", "steps not synchronized yet; at the end of a job, its tail"),
    TimeClass.WAITING: Words("waiting", "paused at sync.maxStalenessSteps"),
    TimeClass.OVERHEAD: Words("overhead", "evaluated, took snapshots for its own checkpoints, copied fragments"),
    TimeClass.AWAY: Words("away", "had no session, loaded the model, or reported nothing"),
}


def shares_of(time: Mapping[str, float] | Mapping[TimeClass, float]) -> TimeShares:
    """Shares from seconds by class. Classes that this version does not know count as away."""
    seconds = {str(name): value for name, value in time.items()}
    total = fsum(seconds.values())
    if total <= 0:
        return {}
    shares = {one: seconds.get(one.value, 0.0) / total for one in TimeClass}
    # The rest, so that the shares add up to 1.
    others = fsum(share for one, share in shares.items() if one != TimeClass.AWAY)
    shares[TimeClass.AWAY] = max(0.0, 1.0 - others)
    return shares


def goodput_of(shares: TimeShares) -> float | None:
    """Share of the time in which inner steps were computed, merged or not; None if no time was given."""
    return min(1.0, fsum(shares.get(one, 0.0) for one in COMPUTING)) if shares else None


def losses_text(shares: TimeShares, *, most: int = len(TimeClass)) -> str:
    """``too late 12.1 %, overwritten 4.2 %``: classes but ``merged``, the largest first; empty if all are small."""
    rest = [one for one in TimeClass if one != TimeClass.MERGED and shares.get(one, 0.0) >= _LEAST_TOLD]
    largest = sorted(rest, key=lambda one: -shares[one])[:most]
    return ", ".join(f"{WORDS[one].title} {percent_text(shares[one])}" for one in largest)
