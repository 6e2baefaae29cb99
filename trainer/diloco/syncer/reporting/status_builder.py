"""Builds the status from the engine's view, what is stored, and rates over the last half minute.

Owned by the event loop.
"""

from diloco.runtime.build import version_text
from diloco.runtime.rate import Rate
from diloco.spec.status.engine import EngineStatus, LearnerState, LearnerStatus
from diloco.spec.status.syncer import StoredStatus, SyncerStatus

WINDOW_SECONDS = 30.0


class Reporter:
    """Builds the status, and keeps the samples that rates need."""

    def __init__(self, job: str, epoch: int) -> None:
        self._job = job
        self._epoch = epoch
        self._merged = Rate(WINDOW_SECONDS)
        self._tokens: dict[str, Rate] = {}
        self._merging_since: float | None = None
        """When the first merge of this process was seen; what was before says nothing of the time that is left."""
        self._sampled_at: float | None = None

    def sample(self, view: EngineStatus, now: float) -> None:
        """Sample the counts. Call it about once a second."""
        if self._merging_since is None and self._sampled_at is not None and view.merged_tokens > self._merged.latest:
            self._merging_since = now
        self._sampled_at = now
        self._merged.add(now, view.merged_tokens)
        for learner in view.learners:
            self._tokens.setdefault(learner.id, Rate(WINDOW_SECONDS)).add(now, learner.tokens)

    def status(self, view: EngineStatus, stored: StoredStatus) -> SyncerStatus:
        """The status of a job that is as in ``view``."""
        per_second = 0.0 if view.finished else self._merged.per_second
        left = max(0.0, view.budget_tokens - view.merged_tokens)
        learners = tuple(one.model_copy(update={"tokens_per_second": self._speed(one)}) for one in view.learners)
        return SyncerStatus(
            **dict(view) | dict(stored) | {"learners": learners},
            job=self._job,
            epoch=self._epoch,
            version=version_text(),
            tokens_per_second=per_second,
            seconds_left=0.0 if view.finished else left / per_second if per_second > 0 and self._measured else None,
        )

    @property
    def _measured(self) -> bool:
        """Whether the rate is of merging alone, not of the wait before the first merge too."""
        since, until = self._merging_since, self._sampled_at
        return since is not None and until is not None and until - since >= WINDOW_SECONDS

    def _speed(self, learner: LearnerStatus) -> float:
        rate = self._tokens.get(learner.id)
        return 0.0 if rate is None or learner.state != LearnerState.TRAINING else rate.per_second
