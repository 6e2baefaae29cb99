"""Which learners are planned, as pools may be scaled while the job runs.

The manifest's pools are fixed, their numbers of learners are not. A learner of a known pool is admitted even before the
engine learns that its pool has grown, as its process may start first. One that is no longer planned and has gone is
withdrawn: its work counts, its absence does not.
"""

from diloco.core.actions import Action, Note
from diloco.core.events import LearnersPlanned
from diloco.core.state import EngineState, LearnerRecord


def problem_with(state: EngineState, learner: str) -> str | None:
    """Why there can be no learner with this id; None if there can. Its pool must be in the manifest."""
    if learner in state.learners:
        return None
    options = state.options
    pool, _, number = learner.rpartition("/")
    # Checked before it is parsed, and in one spelling only: 01 must not be a second name of 1.
    if pool not in options.pools or not number.isascii() or not number.isdigit() or len(number) > 9:
        return f"the job has no learner {learner!r}"
    if str(int(number)) != number or int(number) >= options.maximum_learners:
        return f"the job has no learner {learner!r}; indices of {pool} are 0 to {options.maximum_learners - 1}"
    if len(state.learners) >= options.maximum_learners:
        return f"cannot admit {learner!r}: the limit is {options.maximum_learners} learners"
    return None


def planned(state: EngineState, event: LearnersPlanned, now: float) -> list[Action]:
    """Set the learners that are planned from now on."""
    wanted = frozenset(event.learners)
    more, fewer = wanted - state.planned, state.planned - wanted
    state.planned = wanted
    for name in sorted(more - state.learners.keys()):
        state.learners[name] = LearnerRecord(name)
    for record in state.ordered_learners:
        if record.id in more and record.joins and state.elapsed_since is not None:
            record.given_since = now if record.given_since is None else record.given_since
        withdraw(state, record, now)
        if not record.joins and record.id not in wanted:
            del state.learners[record.id]  # it has no history
    text = f"{len(wanted)} learner(s) are planned: {len(more)} more, {len(fewer)} fewer than before"
    return [Note("LearnersPlanned", text)]


def withdraw(state: EngineState, record: LearnerRecord, now: float) -> None:
    """Stop counting the time of a learner that has no session and is not planned. Called whenever a session ends."""
    if state.counts(record):
        return
    record.recovering = None  # nobody waits for it
    if record.given_since is not None:
        record.given_seconds += now - record.given_since
        record.given_since = None
