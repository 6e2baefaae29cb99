"""Builds the status from the engine's view, rates over the last half minute, checkpoints, tape and byte counts.

Owned by the event loop.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from diloco.core.recovery import BOUNDS, Recoveries
from diloco.core.time_class import TimeClass
from diloco.core.view import EngineView, LearnerView
from diloco.runtime.rate import Rate
from diloco.spec.syncer_status import (
    BackupStatus,
    CheckpointStatus,
    EvaluationStatus,
    LearnerState,
    LearnerStatus,
    LinksStatus,
    PartStatus,
    RecoveredStatus,
    RecoveriesStatus,
    RecoveryStatus,
    RegionBytes,
    SyncerStatus,
)

WINDOW_SECONDS = 30.0
_MOST_RECOVERIES = 64
"""Recoveries in the status (ours); its histograms count all."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """What is on disk or measured, beside the engine's state."""

    checkpoint: CheckpointStatus
    tape_problem: str
    model_exported: bool
    links: LinksStatus | None = None
    """The measured links."""
    bytes_by_region: tuple[RegionBytes, ...] = ()
    """Bytes by region."""
    backup: BackupStatus | None = None
    recovered: RecoveredStatus | None = None
    """What was taken from learners at the start."""
    outer_optimizer: str = ""


class Reporter:
    """Builds the status, and keeps the samples that rates need."""

    def __init__(self, job: str, epoch: int) -> None:
        self._job = job
        self._epoch = epoch
        self._merged = Rate(WINDOW_SECONDS)
        self._tokens: dict[str, Rate] = {}

    def sample(self, view: EngineView, now: float) -> None:
        """Sample the counts. Call it about once a second."""
        self._merged.add(now, view.merged_tokens)
        for learner in view.learners:
            self._tokens.setdefault(learner.id, Rate(WINDOW_SECONDS)).add(now, learner.tokens)

    def status(self, view: EngineView, now: float, stored: StoredState) -> SyncerStatus:
        """The status at ``now``."""
        per_second = 0.0 if view.finished else self._merged.per_second
        left = max(0.0, view.budget_tokens - view.merged_tokens)
        losses = [
            learner.loss
            for learner in view.learners
            if learner.state == LearnerState.TRAINING and learner.loss is not None and math.isfinite(learner.loss)
        ]
        evaluations = tuple(
            EvaluationStatus(
                tokens=e.tokens, loss=_finite(e.loss), seconds=e.at_seconds, final=e.final, doubted=e.doubted
            )
            for e in view.evaluations
        )
        believed = [evaluation for evaluation in evaluations if not evaluation.doubted]
        return SyncerStatus.model_validate(
            {
                "job": self._job,
                "epoch": self._epoch,
                "phase": view.phase,
                "phase_reason": view.phase_reason,
                "syncer_step": view.syncer_step,
                "merged_tokens": view.merged_tokens,
                "budget_tokens": view.budget_tokens,
                "tokens_per_second": per_second,
                "seconds_left": 0.0 if view.finished else left / per_second if per_second > 0 else None,
                "train_loss": math.fsum(losses) / len(losses) if losses else None,
                "eval_loss": believed[-1].loss if believed else None,
                "evaluations": evaluations,
                "goodput": view.goodput,
                "merged": view.merged,
                "recoveries": _recoveries(view.recoveries),
                "time_seconds": _by_class(view.time),
                "elapsed_seconds": view.elapsed_seconds,
                "rounds_in_flight": view.rounds_in_flight,
                "checkpoint": stored.checkpoint,
                "tape_problem": stored.tape_problem,
                "inner_steps": view.inner_steps,
                "trained_tokens": view.trained_tokens,
                "model_exported": stored.model_exported,
                "quorum": view.quorum,
                "quorum_wanted": view.quorum_wanted,
                "links": stored.links,
                "bytes_by_region": stored.bytes_by_region,
                "backup": stored.backup,
                "recovered": stored.recovered,
                "outer_optimizer": stored.outer_optimizer,
                "learners": tuple(self._learner(learner, now) for learner in view.learners),
            }
        )

    def _learner(self, view: LearnerView, now: float) -> LearnerStatus:
        rate = self._tokens.get(view.id)
        return LearnerStatus(
            id=view.id,
            state=view.state,
            incarnation=view.incarnation,
            steps=view.steps,
            tokens=view.tokens,
            merged_tokens=view.merged_tokens,
            tokens_per_second=0.0 if rate is None or view.state != LearnerState.TRAINING else rate.per_second,
            step_seconds=view.step_seconds,
            blocked_fraction=min(1.0, view.blocked_seconds / view.allotted_seconds)
            if view.allotted_seconds > 0
            else 0.0,
            versions_behind=view.versions_behind,
            restarts=view.restarts,
            left_out=view.left_out,
            left_out_reason=view.left_out_reason,
            left_out_now=view.left_out_now,
            resets=view.resets,
            diverged_reason=view.diverged_reason,
            quarantine_seconds=view.quarantine_seconds,
            loss=_finite(view.loss),
            last_heard_seconds=max(0.0, now - view.last_heard_at) if view.incarnation else None,
            time_seconds=_by_class(view.time),
        )


def _recoveries(recoveries: Recoveries) -> RecoveriesStatus:
    latest = recoveries.latest[-_MOST_RECOVERIES:]
    return RecoveriesStatus(
        count=recoveries.count,
        latest=tuple(RecoveryStatus.model_validate(one, from_attributes=True) for one in latest),
        bounds=BOUNDS,
        parts=tuple(
            PartStatus(part=part, total_seconds=one.total_seconds, counts=tuple(one.counts))
            for part, one in recoveries.parts.items()
        ),
    )


def _by_class(time: Mapping[TimeClass, float]) -> dict[str, float]:
    """Rounded to milliseconds, without classes that are 0: a job may have thousands of learners."""
    return {one.value: told for one, seconds in time.items() if (told := round(seconds, 3))}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
