"""Merged fragments on their way back to learners: how long synchronization takes, and what is still in flight.

A fragment is in flight from its launch until as many members as the quorum train on the result. Counting the way back
keeps the syncer from launching more than the links carry. The measured time ends with the last member, since the
overlap must cover that one's work.
"""

from diloco.core.engine.records import Return, Round
from diloco.core.engine.state import EngineState

MEMBERS_PATIENCE = 4
"""Multiple of a round's usual time after which its members no longer count, if others have the result (ours)."""


def merged(state: EngineState, current: Round) -> None:
    """Note that a version is made, and is on its way to the members of its round."""
    assert current.launched_at is not None
    assert current.closed_at is not None
    if before := state.returning.get(current.fragment):  # for members without the version before
        state.sync_seconds.add(current.closed_at - before.closed_at)
        del state.returning[current.fragment]
    awaited = {name for name in current.arrived if state.learners[name].present}
    if awaited:
        needed = min(state.quorum, len(awaited))
        one = Return(current.version, current.launched_at, current.closed_at, needed, awaited)
        state.returning[current.fragment] = one


def applied(state: EngineState, learner: str, fragment: int, version: int, now: float) -> None:
    """Note that a learner trains on a version."""
    returning = state.returning.get(fragment)
    if returning is None or version != returning.version:
        return
    returning.received_by.add(learner)
    if learner in returning.awaited:
        returning.applied += 1
        if returning.applied == returning.needed:
            state.round_seconds.add(now - returning.launched_at)
            size = state.options.sizes[fragment]
            state.overlap.measured(now - returning.launched_at, size, state.quorum_step_seconds)
        _awaits_no_longer(state, fragment, learner, now)


def lost(state: EngineState, learner: str, now: float) -> None:
    """Note that a learner's session is over: its receipt is not awaited any longer."""
    for fragment in [fragment for fragment, one in state.returning.items() if learner in one.awaited]:
        _awaits_no_longer(state, fragment, learner, now)


def in_flight(state: EngineState, now: float, limit_seconds: float) -> int:
    """Fragments that are launched and not yet back; one that is not back after ``limit_seconds`` no longer counts.

    If a quorum of other learners has the result, its members are given only a multiple of the usual time: one whose
    link is cut must not delay the others.
    """
    fragments = {current.fragment for current in state.rounds.values() if current.launched_at is not None}
    usual = min(limit_seconds, MEMBERS_PATIENCE * state.round_seconds.or_else(limit_seconds))
    for fragment, returning in state.returning.items():
        limit = usual if len(returning.received_by) >= returning.needed else limit_seconds
        if returning.in_flight and now - returning.closed_at < limit:
            fragments.add(fragment)
    return len(fragments)


def _awaits_no_longer(state: EngineState, fragment: int, learner: str, now: float) -> None:
    returning = state.returning[fragment]
    returning.awaited.discard(learner)
    if not returning.awaited:
        del state.returning[fragment]
        if returning.applied:
            state.sync_seconds.add(now - returning.closed_at)
