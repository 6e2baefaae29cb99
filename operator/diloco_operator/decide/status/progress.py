"""How far the job is, from the syncer's figures, and when that is worth writing to the status.

Pure. The figures are finite: an answer with others is refused where it is read. The progress of a job that trains is
written at most every ten seconds, and that of a stalled one not at all: figures that change by themselves (goodput,
rates) are written only along with a step, tokens or an evaluation.
"""

import math
import re
from collections.abc import Mapping
from datetime import datetime

from diloco.spec.status.job import MOST_RESTARTS_LISTED, JobStatus, LearnerRestarts, Progress
from diloco_operator.decide.observed import SyncerStatusView

WRITE_EVERY_SECONDS = 10.0
"""Least time between writes of progress alone (ours)."""
STUCK_AFTER_SECONDS = 600.0
"""After this long without a merge, a job whose learners train makes no progress (ours)."""
_MOST_CLASSES = 32
"""Classes of time to list (ours): more than there are."""
_CLASS = re.compile(r"[a-z_]{1,32}")


def progress_of(view: SyncerStatusView, now: datetime) -> Progress:
    """The syncer's figures, rounded for people."""
    tokens = max(0, int(view.merged_tokens))
    left = view.seconds_left
    return Progress(
        step=max(0, view.syncer_step),
        tokens=tokens,
        budget_tokens=max(0, view.budget_tokens),
        # Rounded down, so that 100% means that the budget is reached.
        percent=f"{min(100, 100 * tokens // view.budget_tokens) if view.budget_tokens > 0 else 0}%",
        seconds_left=None if left is None else max(0, round(left)),
        loss=_decimal(view.eval_loss),
        doubted_loss=_doubted(view),
        train_loss=_decimal(view.train_loss),
        merged=_percent(view.merged),
        goodput=_percent(view.goodput),
        time=_shares(view.time_seconds),
        tokens_per_second=max(0, round(view.tokens_per_second)),
        updated_at=now.replace(microsecond=0),
    )


def moved(before: Progress | None, after: Progress) -> bool:
    """Whether there is real progress, and not only figures that change on their own."""
    if before is None:
        return True
    return _told(before) != _told(after)


def _told(progress: Progress) -> tuple[int, int, int, str | None, str | None]:
    return progress.step, progress.tokens, progress.budget_tokens, progress.loss, progress.doubted_loss


def stopped(before: Progress | None, after: Progress) -> bool:
    """Whether the rate has just become 0, so that the time left is no longer known."""
    return before is not None and before.tokens_per_second > 0 and after.tokens_per_second == 0


def due(before: Progress | None, now: datetime) -> bool:
    """Whether the last write of progress is long enough ago."""
    if before is None or before.updated_at is None:
        return True
    return (now - before.updated_at).total_seconds() >= WRITE_EVERY_SECONDS


def without_rates(progress: Progress | None) -> Progress | None:
    """The known progress without rates, while the syncer does not report them."""
    if progress is None or (progress.tokens_per_second, progress.seconds_left) == (0, None):
        return progress
    return progress.model_copy(update={"tokens_per_second": 0, "seconds_left": None})


def held_back(before: Progress, after: Progress) -> Progress:
    """What is written without real progress: the earlier figures with their time, but no rate that has become 0."""
    changed: dict[str, object] = {"tokens_per_second": 0, "seconds_left": None} if stopped(before, after) else {}
    return before.model_copy(update=changed) if changed else before


def stuck(status: JobStatus, now: datetime) -> bool:
    """Whether nothing was merged for long although the job has been Ready all that time."""
    ready_since = [one.last_transition_time for one in status.conditions if (one.type, one.status) == ("Ready", "True")]
    if not ready_since or status.progress is None or status.progress.updated_at is None:
        return False
    return (now - max(*ready_since, status.progress.updated_at)).total_seconds() >= STUCK_AFTER_SECONDS


def restarts_of(view: SyncerStatusView) -> tuple[LearnerRestarts, ...]:
    """Learners that were restarted, those with most restarts first."""
    restarted = [report for report in view.learners if report.restarts > 0]
    worst = sorted(restarted, key=lambda report: (-report.restarts, report.id))[:MOST_RESTARTS_LISTED]
    return tuple(LearnerRestarts(learner=report.id, count=report.restarts) for report in worst)


def _percent(share: float | None) -> str | None:
    return None if share is None or share < 0 else f"{round(100 * min(1.0, share))}%"


def _shares(seconds: Mapping[str, float]) -> dict[str, str] | None:
    """Each class's share of all of them, without those that are next to nothing."""
    known = {name: spent for name, spent in seconds.items() if _CLASS.fullmatch(name) and spent > 0}
    total = sum(known.values())
    if total == math.inf:
        return None
    shares = {name: f"{100 * known[name] / total:.1f}%" for name in sorted(known)[:_MOST_CLASSES]}
    return {name: share for name, share in shares.items() if share != "0.0%"} or None


def _doubted(view: SyncerStatusView) -> str | None:
    newest = view.evaluations[-1] if view.evaluations else None
    return (_decimal(newest.loss) or "NaN") if newest is not None and newest.doubted else None


def _decimal(loss: float | None) -> str | None:
    return None if loss is None else f"{loss:.3f}"
