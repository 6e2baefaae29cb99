"""What faults did: who was hit, how long each recovery took, and what a complete run has survived. Pure.

All times are seconds of one clock, whichever the caller has: that of a run's history, or of a ``diloco chaos`` session.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from rich.table import Table

from diloco.core.account.time_class import TimeClass
from diloco.local.chaos.effect import Effect, affected, what_text
from diloco.local.chaos.spec import Fault
from diloco.local.report.history import RunHistory
from diloco.local.targets import SYNCER
from diloco.local.view.units import duration_text, percent_text

_EARLY_SECONDS: Final = 5.0
"""A learner that falls silent counts as lost from its last message on, which is before the fault by at most this."""


def effects(history: RunHistory) -> list[Effect]:
    """The effect of each fault of a run, by time."""
    ids = [one.id for one in history.learners]
    return [
        Effect.of(fault, [_back_at(victim, fault, history) for victim in affected(fault, ids)])
        for fault in sorted(history.faults, key=lambda one: one.at_seconds)
    ]


def _back_at(victim: str, one: Fault, history: RunHistory) -> float | None:
    if victim == SYNCER:
        # It resumes from a checkpoint, which has less: it has recovered once it has merged more than ever before.
        samples = history.samples
        most = max((sample.tokens for sample in samples if sample.seconds <= one.at_seconds), default=0.0)
        later = (s.seconds for s in samples if s.seconds > one.at_seconds and s.tokens > most)
        return next(later, None)
    # A learner that was lost again before its work was merged has one recovery, which began with the first loss.
    for recovery in history.recoveries:
        if recovery.recovery.learner == victim and recovery.seconds > one.at_seconds:
            lost_in_time = recovery.lost_at <= one.at_seconds + max(one.seconds, _EARLY_SECONDS) + _EARLY_SECONDS
            return recovery.seconds if lost_in_time else None
    return None


_HEAD: Final = ("at", "fault", "work merged again")


def rows(results: Sequence[Effect]) -> tuple[list[str], list[list[str]]]:
    """A table: its head and rows."""
    return list(_HEAD), [
        [duration_text(one.fault.at_seconds), what_text(one.fault), _recovery_text(one)] for one in results
    ]


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
                "recovery_seconds": None if one.recovery_seconds is None else round(one.recovery_seconds, 3),
                "recovered": one.recovered,
                "lost": one.lost,
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


_COST: Final = (TimeClass.LOST, TimeClass.AWAY)
_MOST_TOLD: Final = 3
_PAUSE_SECONDS: Final = 0.5
_PAST: Final = {"kill": "killed", "pause": "stopped", "cut": "cut off"}


def survived_text(history: RunHistory) -> str:
    """What a complete run has survived and at what price; empty without a failure, or if it is not complete."""
    if not history.complete or not (history.faults or history.recoveries):
        return ""
    results, ids = effects(history), [one.id for one in history.learners]
    hit = {learner for one in history.faults for learner in affected(one, ids)}
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
