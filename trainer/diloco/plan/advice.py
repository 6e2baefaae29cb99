"""Recommends the measured training settings (docs/explanation/quality.md) that suit the budget and the links best."""

from dataclasses import dataclass, replace

from diloco.plan.fit.fit import Fit, fit
from diloco.plan.fit.remedies import Setting
from diloco.plan.fit.situation import Situation
from diloco.spec import JobSpec
from diloco.spec.outer_choice import OuterChoice
from diloco.spec.recommendations import Recommendation, outside, ranked

COMPARABLE_SHARE = 0.8
"""Settings are comparable if at least this much of the share merged in the measurement is merged here (ours)."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Measured settings, and what they mean for this job."""

    row: Recommendation
    steps: int
    """Inner steps that a learner of this job makes, approximately."""
    changes: tuple[Setting, ...]
    fit: Fit


def advice(spec: JobSpec, situation: Situation) -> Advice | None:
    """The measured settings with the lowest loss that fit; None if none do, none is alike, or no step time is known.

    A measured loss says little if much less of the work is merged than when it was measured. Such settings are
    recommended only if all are like that, and then those with which the links let most be merged.
    """
    if situation.quorum_step_seconds is None or not_measured(spec, situation):
        return None
    steps = _steps(spec, situation)
    ways = [(row, result) for row in ranked(steps) if (result := fit(_as_measured(situation, row))).fits]
    alike = [way for way in ways if _merged_as_measured(way) >= COMPARABLE_SHARE]
    if not ways:
        return None
    row, result = alike[0] if alike else max(ways, key=_merged_as_measured)
    return Advice(row, steps, tuple(_changes(spec, row)), result)


def not_measured(spec: JobSpec, situation: Situation) -> str:
    """What sets the job apart from all measured runs, as text; empty: nothing does, or no step time is known."""
    if situation.quorum_step_seconds is None:
        return ""
    return outside(_steps(spec, situation), sum(situation.exchange.numels))


def _merged_as_measured(way: tuple[Recommendation, Fit]) -> float:
    row, result = way
    return (result.merged_share or 0.0) / row.merged_share


def _steps(spec: JobSpec, situation: Situation) -> int:
    """Steps of the learner that the schedule counts by, until the budget is trained."""
    step_seconds = situation.quorum_step_seconds
    assert step_seconds is not None
    tokens_in_a_step = sum(
        group.learners * group.tokens_per_step * step_seconds / group.step_seconds
        for group in situation.groups
        if group.step_seconds is not None
    )
    return max(1, round(spec.training.tokens / tokens_in_a_step))


def _as_measured(situation: Situation, row: Recommendation) -> Situation:
    exchange = situation.exchange
    overlap = None if exchange.overlap is None or exchange.overlap >= row.interval else exchange.overlap
    changed = replace(
        exchange, interval=row.interval, overlap=overlap, compression=row.compression, downlink=row.downlink
    )
    return replace(situation, exchange=changed)


def _changes(spec: JobSpec, row: Recommendation) -> list[Setting]:
    sync, optimizer = spec.sync, spec.training.optimizer
    overlap_stands = sync.overlap == "Auto" or sync.overlap < row.interval
    settings: list[tuple[str, str | int | float, str | int | float]] = [
        ("training.optimizer.type", optimizer.type, row.optimizer),
        ("sync.interval", sync.interval, row.interval),
        ("sync.overlap", sync.overlap, sync.overlap if overlap_stands else "Auto"),
        ("sync.compression", sync.compression, row.compression),
        ("sync.downlink", sync.downlink, row.downlink),
    ]
    changes = [Setting(field, wanted) for field, has, wanted in settings if has != wanted]
    # With the row's interval, an automatic one may be another.
    then = spec.model_copy(update={"sync": sync.model_copy(update={"interval": row.interval})})
    outer = OuterChoice.of(then).optimizer
    if (outer.learning_rate, outer.momentum) != (row.outer_learning_rate, row.outer_momentum):
        changes.append(Setting("sync.outerOptimizer.learningRate", row.outer_learning_rate))
        changes.append(Setting("sync.outerOptimizer.momentum", row.outer_momentum))
    return changes
