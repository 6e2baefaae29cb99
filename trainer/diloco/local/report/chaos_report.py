"""What faults did: time to recover, goodput and merged work around each, the loss before and after, the price. Pure.

All times are seconds of one clock, whichever the caller has: that of a run's history, or of a ``diloco chaos`` session.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.table import Table

from diloco.core.account.time_class import TimeClass
from diloco.local.chaos.spec import Fault, FaultKind
from diloco.local.report.history import MOST_NAMES, RunHistory, Sample
from diloco.local.targets import SYNCER
from diloco.local.view.units import duration_text, loss_text, percent_text
from diloco.spec.names.learner_ids import region_of
from diloco.spec.words import shortlist

WINDOW_SECONDS: Final = 60.0
"""Length of the windows before a fault and after the recovery (ours)."""
_EARLY_SECONDS: Final = 5.0
"""A learner that falls silent counts as lost from its last message on, which is before the fault by at most this."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """A learner that was lost, and its work merged again."""

    learner: str
    lost_at: float
    merged_at: float


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of the job around the faults."""

    samples: Sequence[Sample] = ()
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

    fault: Fault
    recovery_seconds: float | None
    """From the fault until the work of every victim was merged again; None: not seen."""
    recovered: int
    lost: int
    """Learners or syncers that should recover."""
    before: Shares
    during: Shares
    after: Shares
    loss_before: float | None
    loss_after: float | None


def observed_in(history: RunHistory) -> Observed:
    """What the history of a run that has ended says around its faults."""
    return Observed(
        samples=history.samples,
        recoveries=[Recovered(one.recovery.learner, one.lost_at, one.seconds) for one in history.recoveries],
        evaluations=[(one.seconds, one.loss) for one in history.evaluations if not one.doubted],
        learner_ids=[one.id for one in history.learners],
        end=history.seconds,
    )


def effects(faults: Sequence[Fault], observed: Observed) -> list[Effect]:
    """The effect of each fault, by time."""
    times = [sample.seconds for sample in observed.samples]
    return [_effect(one, observed, times) for one in sorted(faults, key=lambda one: one.at_seconds)]


def recovered_at(one: Fault, observed: Observed) -> list[float | None]:
    """When the work of each learner that a fault has hit was merged again; None: not seen."""
    return [_recovered_at(victim, one, observed) for victim in affected(one, observed.learner_ids)]


def _effect(one: Fault, observed: Observed, times: list[float]) -> Effect:
    ends = recovered_at(one, observed)
    known = [end for end in ends if end is not None]
    whole = max(known) if known and len(known) == len(ends) else None
    until = whole if whole is not None else min(one.at_seconds + WINDOW_SECONDS, observed.end)
    before = [loss for at, loss in observed.evaluations if at <= one.at_seconds]
    after = [loss for at, loss in observed.evaluations if at >= until]
    return Effect(
        one,
        None if whole is None else max(0.0, whole - one.at_seconds),
        recovered=len(known),
        lost=len(ends),
        before=_shares(observed, times, one.at_seconds - WINDOW_SECONDS, one.at_seconds),
        during=_shares(observed, times, one.at_seconds, until),
        after=_shares(observed, times, until, until + WINDOW_SECONDS),
        loss_before=before[-1] if before else None,
        loss_after=after[0] if after else None,
    )


def affected(one: Fault, learner_ids: Sequence[str]) -> list[str]:
    """Learners, or the syncer, that a fault has hit."""
    if one.kind is not FaultKind.CUT:
        return list(one.victims)
    return [learner for learner in learner_ids if region_of(learner) in one.victims]


def _recovered_at(victim: str, one: Fault, observed: Observed) -> float | None:
    if victim == SYNCER:
        # It resumes from a checkpoint, which has less: it has recovered once it has merged more than ever before.
        most = max((sample.tokens for sample in observed.samples if sample.seconds <= one.at_seconds), default=0.0)
        later = (s.seconds for s in observed.samples if s.seconds > one.at_seconds and s.tokens > most)
        return next(later, None)
    # A learner that was lost again before its work was merged has one recovery, which began with the first loss.
    for recovery in observed.recoveries:
        if recovery.learner == victim and recovery.merged_at > one.at_seconds:
            lost_in_time = recovery.lost_at <= one.at_seconds + max(one.seconds, _EARLY_SECONDS) + _EARLY_SECONDS
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


def rows(results: Sequence[Effect]) -> tuple[list[str], list[list[str]]]:
    """A table: its head and rows."""
    return list(_HEAD), [
        [
            duration_text(one.fault.at_seconds),
            what_text(one.fault),
            _recovery_text(one),
            _three(one.before.goodput, one.during.goodput, one.after.goodput),
            _three(one.before.merged, one.during.merged, one.after.merged),
            f"{loss_text(one.loss_before)}, {loss_text(one.loss_after)}",
        ]
        for one in results
    ]


def what_text(one: Fault) -> str:
    """``kill west/old (2 learners)``."""
    names = shortlist(list(one.victims), MOST_NAMES)
    what = f"{one.kind} {one.target}" + (f": {names}" if names and names != one.target else "")
    lasting = f" for {one.seconds:g} s" if one.seconds else ""
    return f"{what}{lasting}" + (f" (refused: {one.refused})" if one.refused else "")


def table(results: Sequence[Effect]) -> Table:
    """The same for a terminal."""
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    head, lines = rows(results)
    for name in head:
        drawn.add_column(name, overflow="fold")
    for line in lines:
        drawn.add_row(*line)
    return drawn


def document(results: Sequence[Effect], *, job: str, seed: int | None = None) -> dict[str, Any]:
    """The same as plain JSON, for ``chaos.json``."""
    return {
        "job": job,
        "seed": seed,
        "faults": [
            {
                "seconds": round(one.fault.at_seconds, 3),
                "kind": one.fault.kind,
                "target": one.fault.target,
                "victims": list(one.fault.victims),
                "lasted_seconds": one.fault.seconds,
                "refused": one.fault.refused,
                **{name: value for name, value in asdict(one).items() if name != "fault"},
                "recovery_seconds": None if one.recovery_seconds is None else round(one.recovery_seconds, 3),
            }
            for one in results
        ],
    }


def _recovery_text(one: Effect) -> str:
    if not one.lost:
        return "-"
    if one.recovery_seconds is not None:
        return f"after {one.recovery_seconds:.1f} s"
    if not one.recovered and one.fault.seconds:
        return "no loss seen"  # a short pause or cut need not end a session
    return f"{one.recovered} of {one.lost} seen"


def _three(*shares: float | None) -> str:
    return ", ".join(percent_text(share) for share in shares)


_COST: Final = (TimeClass.LOST, TimeClass.AWAY)
_MOST_TOLD: Final = 3
_PAUSE_SECONDS: Final = 0.5
_PAST: Final = {"kill": "killed", "pause": "stopped", "cut": "cut off"}


def survived_text(history: RunHistory) -> str:
    """What a complete run has survived and at what price; empty without a failure, or if it is not complete."""
    if not history.complete or not (history.faults or history.recoveries):
        return ""
    observed = observed_in(history)
    results = effects(history.faults, observed)
    hit = {learner for one in history.faults for learner in affected(one, observed.learner_ids)}
    parts = [_fault_text(one) for one in results] if len(results) <= _MOST_TOLD else [_counts_text(results)]
    alone = [one.recovery for one in history.recoveries if one.recovery.learner not in hit]
    parts += [f"{one.learner} lost (back after {one.seconds:.1f} s)" for one in alone[:_MOST_TOLD]]
    parts += [f"{len(alone) - _MOST_TOLD} more losses of learners"] if len(alone) > _MOST_TOLD else []
    hit |= {one.learner for one in alone}
    others = (one for one in history.learners if one.id not in hit)
    longest = max((one.time.get(TimeClass.WAITING, 0.0) * one.allotted_seconds for one in others), default=0.0)
    unpaused = longest < _PAUSE_SECONDS
    paused = "no other learner paused" if unpaused else f"the others paused for {longest:.1f} s at most"
    cost = percent_text(sum(history.time.get(one, 0.0) for one in _COST))
    return (
        f"Survived: {', '.join(parts)}; this cost {cost} of the learners' time, {paused}, "
        f"and {percent_text(history.merged)} of all time is work in the model."
    )


def _fault_text(one: Effect) -> str:
    lasting = f" for {one.fault.seconds:g} s" if one.fault.seconds else ""
    back = "" if one.recovery_seconds is None else f" (back after {one.recovery_seconds:.1f} s)"
    return f"{one.fault.target} {_PAST.get(one.fault.kind, one.fault.kind)}{lasting}{back}"


def _counts_text(results: list[Effect]) -> str:
    counts = Counter(_PAST.get(one.fault.kind, one.fault.kind) for one in results)
    back = [one.recovery_seconds for one in results if one.recovery_seconds is not None]
    longest = f" (back after {max(back):.1f} s at most)" if back else ""
    return ", ".join(f"{count} times {kind}" for kind, count in counts.items()) + longest
