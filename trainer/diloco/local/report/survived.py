"""One sentence on the failures that a run went through, and on what they cost. Pure."""

from collections import Counter
from typing import Final

from diloco.core.time_class import TimeClass
from diloco.local.report.chaos_report import Effect, affected, effects, observed_in
from diloco.local.report.history import RunHistory
from diloco.local.view.units import percent_text

_COST: Final = (TimeClass.LOST, TimeClass.MISSED, TimeClass.REJOINING, TimeClass.AWAY)
"""Classes of time that a process or link that fails costs."""
_MOST_TOLD: Final = 3
"""More faults than this are counted by kind."""
_PAUSE_SECONDS: Final = 0.5
"""A shorter pause is not told (ours)."""
_PAST: Final = {"kill": "killed", "pause": "stopped", "cut": "cut off"}


def survived_text(history: RunHistory) -> str:
    """What a complete run has survived and at what price; empty without a failure, or if it is not complete."""
    if not history.complete or not (history.faults or history.recoveries):
        return ""
    injected, observed = observed_in(history)
    found = effects(injected, observed)
    hit = {learner for one in injected for learner in affected(one, observed.learner_ids)}
    told = [_fault_text(one) for one in found] if len(found) <= _MOST_TOLD else [_counts_text(found)]
    alone = [one.recovery for one in history.recoveries if one.recovery.learner not in hit]
    told += [f"{one.learner} lost (back after {one.seconds:.1f} s)" for one in alone[:_MOST_TOLD]]
    told += [f"{len(alone) - _MOST_TOLD} more losses of learners"] if len(alone) > _MOST_TOLD else []
    hit |= {one.learner for one in alone}
    others = (one for one in history.learners if one.id not in hit)
    longest = max((one.time.get(TimeClass.WAITING, 0.0) * one.allotted_seconds for one in others), default=0.0)
    unpaused = longest < _PAUSE_SECONDS
    paused = "no other learner paused" if unpaused else f"the others paused for {longest:.1f} s at most"
    cost = percent_text(sum(history.time.get(one, 0.0) for one in _COST))
    return (
        f"Survived: {', '.join(told)}; this cost {cost} of the learners' time, {paused}, "
        f"and {percent_text(history.merged)} of all time is work in the model."
    )


def _fault_text(one: Effect) -> str:
    lasting = f" for {one.injected.seconds:g} s" if one.injected.seconds else ""
    back = "" if one.recovery_seconds is None else f" (back after {one.recovery_seconds:.1f} s)"
    return f"{one.injected.target} {_PAST.get(one.injected.kind, one.injected.kind)}{lasting}{back}"


def _counts_text(found: list[Effect]) -> str:
    counts = Counter(_PAST.get(one.injected.kind, one.injected.kind) for one in found)
    back = [one.recovery_seconds for one in found if one.recovery_seconds is not None]
    longest = f" (back after {max(back):.1f} s at most)" if back else ""
    return ", ".join(f"{count} times {kind}" for kind, count in counts.items()) + longest
