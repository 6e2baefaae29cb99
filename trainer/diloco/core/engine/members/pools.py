"""Which learners are planned, as pools may be scaled, added and removed while the job runs, and whose absence counts.

A learner of a known pool is admitted even before the engine learns that its pool has grown, as its process may start
first. It loads the model, trains and waits: it is neither asked nor counted nor compared until it is planned, because
the holder of the pool's certificate can join with any number of ids. The same holds for a learner that is no longer
planned. Once it has gone it is withdrawn: its work counts, its absence does not. Learners of a removed pool are put out
(`leases`): the operator tells them to leave before the syncer reads of it.

An elastic pool may have fewer learners than are planned. Which of them run is up to the scheduler, so its minimum is a
number and no set of ids: of its absent learners, only as many count as it lacks to that number.
"""

from diloco.core.engine.actions import Action, Note, NoteKind
from diloco.core.engine.events import LearnersPlanned
from diloco.core.engine.records import ElasticPool, LearnerRecord
from diloco.core.engine.state import EngineState
from diloco.spec.checks import MAXIMUM_LEARNERS


def problem_with(state: EngineState, learner: str) -> str | None:
    """Why there can be no learner with this id; None if there can. Its pool must be in the manifest."""
    pool, _, number = learner.rpartition("/")
    if pool in state.pools and learner in state.learners:
        return None
    # Checked before it is parsed, and in one spelling only: 01 must not be a second name of 1.
    if pool not in state.pools or not number.isascii() or not number.isdigit() or len(number) > 9:
        return f"the job has no learner {learner!r}"
    if str(int(number)) != number or int(number) >= MAXIMUM_LEARNERS:
        return f"the job has no learner {learner!r}; indices of {pool} are 0 to {MAXIMUM_LEARNERS - 1}"
    if len(state.learners) >= MAXIMUM_LEARNERS:
        return f"cannot admit {learner!r}: the limit is {MAXIMUM_LEARNERS} learners"
    return None


def planned(state: EngineState, event: LearnersPlanned, now: float) -> list[Action]:
    """Set the learners that are planned from now on."""
    wanted = frozenset(event.learners)
    more, fewer = wanted - state.planned, state.planned - wanted
    were_elastic = state.elastic.keys()
    state.planned, state.pools = wanted, frozenset(event.pools)
    state.elastic = {one.pool: ElasticPool(one.learners) for one in event.minimums}
    state.terms = {one.pool: one for one in event.terms}
    fixed_now = were_elastic - state.elastic.keys()
    for name in sorted(more - state.learners.keys()):
        state.learners[name] = LearnerRecord(name)
    for record in state.ordered_learners:
        if record.id in more or (record.id in wanted and record.pool in fixed_now):
            _count(state, record, now)
        if not state.counts(record):
            record.recovering = None
            _pause(record, now)
        if not record.joins and record.id not in wanted:
            del state.learners[record.id]  # it has no history
    state.roster.gather()
    settle(state, now)
    text = f"{len(wanted)} learner(s) are planned: {len(more)} more, {len(fewer)} fewer than before"
    fewest = ", ".join(f"{one.learners} of {one.pool}" for one in event.minimums)
    return [Note(NoteKind.LEARNERS_PLANNED, f"{text}; at least {fewest}" if fewest else text)]


def entered(state: EngineState, record: LearnerRecord, now: float) -> None:
    """Note that a session has begun: of an elastic pool, the absence that was counted last may stop counting."""
    pool = state.elastic.get(record.pool)
    if pool is not None:
        pool.present.add(record.id)
        if record.id in pool.missed:
            pool.missed.remove(record.id)
        while pool.missed and pool.lacks < 0:
            _pause(state.learners[pool.missed.pop()], now)


def withdraw(state: EngineState, record: LearnerRecord, now: float) -> None:
    """Stop counting the time of a learner that has no session and need not be there. Called when a session ends."""
    if not state.counts(record):
        record.recovering = None  # nobody waits for it
    pool = state.elastic.get(record.pool)
    if pool is not None:
        pool.present.discard(record.id)
        missed = pool.lacks > 0 and not state.finished
        if missed and record.id in state.planned:
            pool.missed.append(record.id)
        if record.id not in pool.missed:
            _pause(record, now)
            if missed:  # it is no longer planned; others may be that are away
                settle(state, now)
    elif not state.counts(record):
        _pause(record, now)


def settle(state: EngineState, now: float) -> None:
    """Find out anew for all elastic pools which of their absent learners count: those that do already come first."""
    for pool in state.elastic.values():
        pool.present.clear()
        pool.missed.clear()
    absent: dict[str, list[LearnerRecord]] = {}
    for record in state.ordered_learners:
        name = record.pool
        if name in state.elastic and record.present:
            state.elastic[name].present.add(record.id)
        elif name in state.elastic and record.joins:
            absent.setdefault(name, []).append(record)
    for name, records in absent.items():
        pool = state.elastic[name]
        for record in sorted(records, key=lambda one: (one.allotted_since is None, one.allotted_since or 0.0)):
            if record.id in state.planned and pool.lacks > 0:
                pool.missed.append(record.id)
                _count(state, record, now)
            else:
                _pause(record, now)


def _count(state: EngineState, record: LearnerRecord, now: float) -> None:
    """Count a learner's time from now on, if it has ever joined and any time counts."""
    if record.joins and state.elapsed_since is not None and record.allotted_since is None:
        record.allotted_since = now


def _pause(record: LearnerRecord, now: float) -> None:
    if record.allotted_since is not None:
        record.allotted_seconds += now - record.allotted_since
        record.allotted_since = None
