"""Recommends the measured training settings (docs/explanation/quality.md) that suit the budget and the links best."""

from dataclasses import dataclass

from diloco.plan.changes import Setting
from diloco.plan.verdict import Fit
from diloco.simulate.planning.case import Case
from diloco.simulate.planning.trial import fit_of
from diloco.spec import JobSpec
from diloco.spec.outer_choice import OuterChoice
from diloco.spec.recommendations import Recommendation, outside, ranked

COMPARABLE_SHARE = 0.8
"""Settings are comparable if at least this much of the share merged in the measurement is merged here (ours)."""

_EXCHANGED = ("sync.interval", "sync.overlap", "sync.compression", "sync.downlink")


@dataclass(frozen=True, slots=True)
class Advice:
    """Measured settings, and what they mean for this job."""

    row: Recommendation
    steps: int
    """Inner steps that a learner of this job makes, approximately."""
    changes: tuple[Setting, ...]
    fit: Fit


def advice(case: Case) -> Advice | None:
    """The measured settings with the lowest loss that fit; None if none do, none is alike, or no step time is known.

    A measured loss says little if much less of the work is merged than when it was measured. Such settings are
    recommended only if all are like that, and then those with which the links let most be merged.
    """
    if case.situation.quorum_step_seconds is None or not_measured(case):
        return None
    steps = case.steps
    best: tuple[float, Recommendation, Fit] | None = None
    seen: dict[tuple[Setting, ...], Fit] = {}
    for row in ranked(steps):
        # What of a row decides how it goes on links.
        changes = tuple(one for one in _changes(case.spec, row) if one.field in _EXCHANGED)
        if changes not in seen:
            seen[changes] = fit_of(case.changed(changes))
        if not (found := seen[changes]).fits:
            continue
        share = (found.merged_share or 0.0) / row.merged_share
        if best is None or share > best[0]:
            best = share, row, found
        if share >= COMPARABLE_SHARE:
            break
    if best is None:
        return None
    _, row, found = best
    return Advice(row, steps, tuple(_changes(case.spec, row)), found)


def not_measured(case: Case) -> str:
    """What sets the job apart from all measured runs, as text; empty: nothing does, or no step time is known."""
    return "" if case.situation.quorum_step_seconds is None else outside(case.steps, sum(case.numels))


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
    if sync.density is not None and row.compression != "TopK":
        changes.append(Setting("sync.density", None))
    # With the row's interval and encodings, an automatic one may be another.
    exchange = {"interval": row.interval, "compression": row.compression, "downlink": row.downlink}
    then = spec.model_copy(update={"sync": sync.model_copy(update=exchange)})
    outer = OuterChoice.of(then).optimizer
    if (outer.learning_rate, outer.momentum) != (row.outer_learning_rate, row.outer_momentum):
        changes.append(Setting("sync.outerOptimizer.learningRate", row.outer_learning_rate))
        changes.append(Setting("sync.outerOptimizer.momentum", row.outer_momentum))
    return changes
