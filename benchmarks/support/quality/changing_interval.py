"""An interval H that changes once during a job, for the experiment `changing_interval`.

The product's schedule is replaced by one whose syncer steps come at one interval up to a step, then at another.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple
from unittest import mock

from diloco.core.engine import options
from diloco.core.engine.rounds.schedule import Schedule


class Change(NamedTuple):
    """Of H."""

    share: float
    """Of the steps, after which it changes."""
    before: int
    after: int


def _changing(change: Change, steps: int) -> type[Schedule]:
    until = round(change.share * steps)

    class Changing(Schedule):
        """Its ``interval`` is the longer one."""

        def due(self, step: int) -> int:
            launched = until * self.fragments // change.before
            if step <= launched:
                return -(-step * change.before // self.fragments)
            return until - (-(step - launched) * change.after // self.fragments)

    return Changing


def interval_of(change: Change | None, steps: int) -> AbstractContextManager[object]:
    """Engines made meanwhile change H, but for None. ``steps``: of each learner in the job."""
    return nullcontext() if change is None else mock.patch.object(options, "Schedule", _changing(change, steps))
