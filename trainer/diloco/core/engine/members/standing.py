"""Tells a learner that has diverged from one that a merge leaves out for a while, and what to do about it (ours).

Merges leave out outer gradients that are *broken* (not finite) or far larger than the others' (`outliers`). The first
kind is wrong in itself: a few in a row are enough. The second kind is relative, and honest learners are left out too:
one that has trained alone, for as long as the others warm up; either of two that differ. So a learner has diverged by
its size only if the same fragment was left out several times in a row, longer than a warm-up lasts.

One that has diverged is *reset*: it starts over from the global model, and is on trial until every fragment was merged
with it several times. If it diverges on trial it is put in *quarantine*, provided that enough others were merged
meanwhile: one if it is broken; more than half of the planned learners if it is only large, so that a minority that
happens to meet in a merge cannot shut out the rest. Otherwise it is reset again.

A learner whose outer gradients point against the others' for many merges is named, and nothing else is done: its data
may differ, or it may be the only honest one.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

BROKEN_MERGES = 3
"""Broken outer gradients in a row, of one fragment or of any, after which a learner has diverged: a single one may come
from a flipped bit."""
LARGE_TURNS = 6
"""Times in a row that the same fragment is left out for its size, after which a learner has diverged. At an interval of
24 steps, these are 144 steps. With a warm-up of W steps, honest learners differ by more than the largest ratio of
`outliers` for W / 16 steps."""
TRIAL_TURNS = 4
"""A reset learner is trusted again after this many merges for each fragment."""
LARGEST_DOUBLINGS = 6
"""A quarantine is at most 2 to this power times as long as the first."""
AGAINST_MERGES = 24
"""Merges in a row in which a learner points against the others, after which it is named. At right angles to them, which
honest learners are at worst, this happens by chance once in 2 to this power."""
AGAINST_TURNS = 2
"""And at least this many for each fragment."""
_MEMORY = 0.9
"""Weight of the old agreement when another is added."""


class Remedy(StrEnum):
    """What is done about a learner that has diverged."""

    RESET = "Reset"
    QUARANTINE = "Quarantine"


@dataclass(slots=True)
class Standing:
    """A learner's standing."""

    broken_in_a_row: int = 0
    """Broken outer gradients since one was merged."""
    in_a_row: dict[int, int] = field(default_factory=dict)
    """By fragment: times in a row that it was left out."""
    merged_in_row: dict[int, set[str]] = field(default_factory=dict)
    """By fragment: learners whose outer gradients these merges contain."""
    reset_due: bool = False
    """It has diverged, and has not loaded the global model since."""
    on_trial: bool = False
    """It was reset, and has not been merged often enough since."""
    merged_on_trial: int = 0
    resets: int = 0
    quarantines: int = 0
    """Quarantines since it was last trusted."""
    quarantined_until: float | None = None
    reason: str = ""
    """Why it was last found to have diverged."""
    agreement: float | None = None
    """Moving average of the cosine between its outer gradients and the others'; None: it was never merged with
    others."""
    against_in_a_row: int = 0
    """Merges since that cosine was not below 0."""

    @property
    def quarantined(self) -> bool:
        """Whether it is in quarantine."""
        return self.quarantined_until is not None


def merged_with(standing: Standing, fragment: int, fragments: int) -> None:
    """Note a merge of a fragment that contains a learner's outer gradient; the model has this many ``fragments``."""
    standing.broken_in_a_row = 0
    standing.in_a_row.pop(fragment, None)
    standing.merged_in_row.pop(fragment, None)
    if standing.on_trial:
        standing.merged_on_trial += 1
        if standing.merged_on_trial >= TRIAL_TURNS * fragments:
            standing.on_trial, standing.quarantines, standing.reason = False, 0, ""


def agreed(standing: Standing, cosine: float) -> None:
    """Note the cosine between a learner's part of a merge and the others'."""
    before = cosine if standing.agreement is None else standing.agreement
    standing.agreement = _MEMORY * before + (1 - _MEMORY) * cosine
    standing.against_in_a_row = standing.against_in_a_row + 1 if cosine < 0.0 else 0


def is_against(standing: Standing, fragments: int) -> bool:
    """Whether a learner has pointed against the others for many merges; the model has this many ``fragments``."""
    return standing.against_in_a_row >= max(AGAINST_MERGES, AGAINST_TURNS * fragments)


def left_out(
    standing: Standing, fragment: int, *, broken: bool, merged: Collection[str], planned: Collection[str]
) -> Remedy | None:
    """Note that a merge leaves a learner out; returns what to do about it, None: nothing yet.

    ``merged``: learners whose outer gradients the merge contains. ``planned``: the planned learners.
    """
    if standing.reset_due or standing.quarantined:
        return None
    standing.broken_in_a_row += broken
    turns = standing.in_a_row[fragment] = standing.in_a_row.get(fragment, 0) + 1
    met = standing.merged_in_row.setdefault(fragment, set())
    met.update(merged)
    if not (standing.broken_in_a_row >= BROKEN_MERGES or turns >= (BROKEN_MERGES if broken else LARGE_TURNS)):
        return None
    convincing = bool(met) if broken else 2 * len(met.intersection(planned)) > len(planned)
    return Remedy.QUARANTINE if standing.on_trial and convincing else Remedy.RESET


def reset(standing: Standing, reason: str) -> None:
    """A learner must start over."""
    _forget_row(standing)
    standing.resets += 1
    standing.reset_due, standing.reason = True, reason


def quarantine(standing: Standing, reason: str, now: float, first_seconds: float) -> float:
    """A learner goes into quarantine; returns for how many seconds."""
    _forget_row(standing)
    seconds = first_seconds * 2.0 ** min(standing.quarantines, LARGEST_DOUBLINGS)
    standing.quarantines += 1
    standing.quarantined_until, standing.reason = now + seconds, reason
    return seconds


def release(standing: Standing) -> None:
    """A learner leaves its quarantine, and must start over."""
    standing.quarantined_until = None
    reset(standing, standing.reason)


def loaded(standing: Standing) -> None:
    """A learner has loaded the global model: if it had to start over, it is on trial."""
    if standing.reset_due:
        standing.reset_due = False
        standing.on_trial, standing.merged_on_trial = True, 0


def _forget_row(standing: Standing) -> None:
    standing.broken_in_a_row = 0
    standing.in_a_row.clear()
    standing.merged_in_row.clear()
