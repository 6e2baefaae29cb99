"""What injected faults did: time to recover, goodput and merged work around each, and the loss before and after. Pure.

All times are seconds of one clock, whichever the caller has: that of a run's history, or of a ``diloco chaos`` session.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.table import Table

from diloco.local.report.history import RunHistory
from diloco.local.targets import SYNCER
from diloco.local.view.units import duration_text, loss_text, percent_text
from diloco.spec.learner_ids import region_of
from diloco.spec.words import shortlist

WINDOW_SECONDS: Final = 60.0
"""Length of the windows before a fault and after the recovery (ours)."""
_EARLY_SECONDS: Final = 5.0
"""A learner that falls silent counts as lost from its last message on, which is before the fault by at most this."""
_MOST_NAMES: Final = 4


@dataclass(frozen=True, slots=True)
class ChaosSample:
    """The job at one time, counted from its start."""

    seconds: float
    allotted_seconds: float
    merged_seconds: float
    computing_seconds: float
    merged_tokens: float


@dataclass(frozen=True, slots=True)
class Recovered:
    """A learner that was lost, and its work merged again."""

    learner: str
    lost_at: float
    merged_at: float


@dataclass(frozen=True, slots=True)
class Injected:
    """One fault as it was injected."""

    at: float
    kind: str
    target: str
    victims: tuple[str, ...]
    """Learners or ``syncer``; regions for a cut. Empty if nothing could be hit."""
    seconds: float = 0.0
    """How long it lasted, for a pause or a cut."""
    refused: str = ""
    """Why it did not hit anything, or not all that it should."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of the job around the faults."""

    samples: Sequence[ChaosSample] = ()
    recoveries: Sequence[Recovered] = ()
    evaluations: Sequence[tuple[float, float]] = ()
    """Time and loss of each credible evaluation."""
    learner_ids: Sequence[str] = ()
    end: float = 0.0


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the allotted time in one window; None: too little is known."""

    goodput: float | None = None
    merged: float | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """One fault and its effect."""

    injected: Injected
    recovery_seconds: float | None
    """From the fault until the work of every victim was merged again; None: not seen."""
    recovered: int
    """Victims whose work was merged again."""
    lost: int
    """Learners or syncers that should recover."""
    before: Shares
    during: Shares
    after: Shares
    loss_before: float | None
    loss_after: float | None


def observed_in(history: RunHistory) -> tuple[list[Injected], Observed]:
    """The faults of a run that has ended, and what its history says around them."""
    injected = [
        Injected(one.seconds, one.kind, shortlist(list(one.victims), _MOST_NAMES), one.victims, one.lasted_seconds)
        for one in history.faults
    ]
    samples = [
        ChaosSample(
            one.seconds,
            one.allotted_seconds,
            one.allotted_seconds * (one.merged or 0.0),
            one.allotted_seconds * (one.goodput or 0.0),
            one.tokens,
        )
        for one in history.samples
    ]
    return injected, Observed(
        samples=samples,
        recoveries=[Recovered(one.recovery.learner, one.lost_at, one.seconds) for one in history.recoveries],
        evaluations=[(one.seconds, one.loss) for one in history.evaluations if not one.doubted],
        learner_ids=[one.id for one in history.learners],
        end=history.seconds,
    )


def effects(injected: Sequence[Injected], observed: Observed) -> list[Effect]:
    """The effect of each fault, by time."""
    times = [sample.seconds for sample in observed.samples]
    return [_effect(one, observed, times) for one in sorted(injected, key=lambda one: one.at)]


def recovered_at(one: Injected, observed: Observed) -> list[float | None]:
    """When the work of each learner that a fault has hit was merged again; None: not seen."""
    return [_recovered_at(victim, one, observed) for victim in affected(one, observed.learner_ids)]


def _effect(one: Injected, observed: Observed, times: list[float]) -> Effect:
    ends = recovered_at(one, observed)
    known = [end for end in ends if end is not None]
    whole = max(known) if known and len(known) == len(ends) else None
    until = whole if whole is not None else min(one.at + WINDOW_SECONDS, observed.end)
    before = [loss for at, loss in observed.evaluations if at <= one.at]
    after = [loss for at, loss in observed.evaluations if at >= until]
    return Effect(
        one,
        None if whole is None else max(0.0, whole - one.at),
        recovered=len(known),
        lost=len(ends),
        before=_shares(observed, times, one.at - WINDOW_SECONDS, one.at),
        during=_shares(observed, times, one.at, until),
        after=_shares(observed, times, until, until + WINDOW_SECONDS),
        loss_before=before[-1] if before else None,
        loss_after=after[0] if after else None,
    )


def affected(one: Injected, learner_ids: Sequence[str]) -> list[str]:
    """Learners, or the syncer, that a fault has hit."""
    if one.kind != "cut":
        return list(one.victims)
    return [learner for learner in learner_ids if region_of(learner) in one.victims]


def _recovered_at(victim: str, one: Injected, observed: Observed) -> float | None:
    if victim == SYNCER:
        # It resumes from a checkpoint, which has less: it has recovered once it has merged more than ever before.
        most = max((sample.merged_tokens for sample in observed.samples if sample.seconds <= one.at), default=0.0)
        later = (s.seconds for s in observed.samples if s.seconds > one.at and s.merged_tokens > most)
        return next(later, None)
    # A learner that was lost again before its work was merged has one recovery, which began with the first loss.
    for recovery in observed.recoveries:
        if recovery.learner == victim and recovery.merged_at > one.at:
            lost_in_time = recovery.lost_at <= one.at + max(one.seconds, _EARLY_SECONDS) + _EARLY_SECONDS
            return recovery.merged_at if lost_in_time else None
    return None


def _shares(observed: Observed, times: list[float], start: float, end: float) -> Shares:
    samples = observed.samples
    if not samples:
        return Shares()
    first = samples[max(0, bisect_right(times, start) - 1)]
    last = samples[min(bisect_left(times, end), len(samples) - 1)]
    if last.allotted_seconds <= first.allotted_seconds:
        return Shares()  # the syncer has resumed from a checkpoint, and its account with it
    given = last.allotted_seconds - first.allotted_seconds

    def share(rise: float) -> float:
        return min(1.0, max(0.0, rise / given))

    return Shares(
        goodput=share(last.computing_seconds - first.computing_seconds),
        merged=share(last.merged_seconds - first.merged_seconds),
    )


_HEAD: Final = ("at", "fault", "recovered", "goodput before, during, after", "merged", "loss before, after")


def rows(found: Sequence[Effect]) -> tuple[list[str], list[list[str]]]:
    """A table: its head and rows."""
    return list(_HEAD), [
        [
            duration_text(one.injected.at),
            what_text(one.injected),
            _recovery_text(one),
            _three(one.before.goodput, one.during.goodput, one.after.goodput),
            _three(one.before.merged, one.during.merged, one.after.merged),
            f"{loss_text(one.loss_before)}, {loss_text(one.loss_after)}",
        ]
        for one in found
    ]


def what_text(one: Injected) -> str:
    """``kill west/old (2 learners)``."""
    names = shortlist(list(one.victims), _MOST_NAMES)
    what = f"{one.kind} {one.target}" + (f": {names}" if names and names != one.target else "")
    lasting = f" for {one.seconds:g} s" if one.seconds else ""
    return f"{what}{lasting}" + (f" (refused: {one.refused})" if one.refused else "")


def table(found: Sequence[Effect]) -> Table:
    """The same for a terminal."""
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    head, lines = rows(found)
    for name in head:
        drawn.add_column(name, overflow="fold")
    for line in lines:
        drawn.add_row(*line)
    return drawn


def document(found: Sequence[Effect], *, job: str, seed: int | None = None) -> dict[str, Any]:
    """The same as plain JSON, for ``chaos.json``."""
    return {
        "job": job,
        "seed": seed,
        "faults": [
            {
                "seconds": round(one.injected.at, 3),
                "kind": one.injected.kind,
                "target": one.injected.target,
                "victims": list(one.injected.victims),
                "lasted_seconds": one.injected.seconds,
                "refused": one.injected.refused,
                "recovery_seconds": None if one.recovery_seconds is None else round(one.recovery_seconds, 3),
                "recovered": one.recovered,
                "lost": one.lost,
                **{
                    name: {"goodput": shares.goodput, "merged": shares.merged}
                    for name, shares in (("before", one.before), ("during", one.during), ("after", one.after))
                },
                "loss_before": one.loss_before,
                "loss_after": one.loss_after,
            }
            for one in found
        ],
    }


def _recovery_text(one: Effect) -> str:
    if not one.lost:
        return "-"
    if one.recovery_seconds is not None:
        return f"after {one.recovery_seconds:.1f} s"
    if not one.recovered and one.injected.seconds:
        return "no loss seen"  # a short pause or cut need not end a session
    return f"{one.recovered} of {one.lost} seen"


def _three(*shares: float | None) -> str:
    return ", ".join(percent_text(share) for share in shares)
