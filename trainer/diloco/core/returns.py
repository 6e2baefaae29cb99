"""Merged fragments on their way back to learners: how long synchronization takes, and what is still in flight.

A fragment is in flight from its launch until as many members as the quorum train on the result. Counting the way back
keeps the syncer from launching more than the links carry. The measured time ends with the last member, since the
overlap must cover that one's work.
"""

from diloco.core.options import Rules
from diloco.core.state import EngineState, Return, Round

MEMBERS_PATIENCE = 4
"""Multiple of a round's usual time after which its members no longer count, if others have the result (ours)."""


def merged(state: EngineState, current: Round) -> None:
    """Note that a version is made, and is on its way to the members of its round."""
    assert current.launched_at is not None
    assert current.closed_at is not None
    _settle(state, state.returning.get(current.fragment), current.closed_at)  # for members without the version before
    awaited = {name for name in current.arrived if state.learners[name].present}
    needed = min(state.quorum, len(awaited))
    state.returning[current.fragment] = Return(current.version, current.launched_at, current.closed_at, needed, awaited)


def applied(state: EngineState, learner: str, fragment: int, version: int, now: float) -> None:
    """Note that a learner trains on a version."""
    returning = state.returning.get(fragment)
    if returning is None or version != returning.version:
        return
    if state.options.rules == Rules.ARRIVED:  # the first learner to apply it, member or not, ended it
        del state.returning[fragment]
        state.sync_seconds.add(now - returning.closed_at)
        return
    returning.received_by.add(learner)
    if learner in returning.awaited:
        returning.awaited.discard(learner)
        returning.applied += 1
        if returning.applied == returning.needed:
            state.round_seconds.add(now - returning.launched_at)
            size = state.options.size(fragment)
            state.in_flight.measured(now - returning.launched_at, size, state.quorum_step_seconds)
        if not returning.awaited:
            del state.returning[fragment]
            _settle(state, returning, now)


def lost(state: EngineState, learner: str, now: float) -> None:
    """Note that a learner's session is over: its receipt is not awaited any longer."""
    for fragment, returning in list(state.returning.items()):
        if learner in returning.awaited and state.options.rules != Rules.ARRIVED:
            returning.awaited.discard(learner)
            if not returning.awaited:
                del state.returning[fragment]
                if returning.applied:
                    _settle(state, returning, now)


def in_flight(state: EngineState, now: float, limit_seconds: float) -> int:
    """Fragments that are launched and not yet back; one that is not back after ``limit_seconds`` no longer counts.

    If a quorum of other learners has the result, its members are given only a multiple of the usual time: one whose
    link is cut must not delay the others.
    """
    fragments = {current.fragment for current in state.rounds.values() if current.launched_at is not None}
    if state.options.rules == Rules.ARRIVED:
        return len(fragments)
    usual = min(limit_seconds, MEMBERS_PATIENCE * state.round_seconds.or_else(limit_seconds))
    for fragment, returning in state.returning.items():
        limit = usual if len(returning.received_by) >= returning.needed else limit_seconds
        if returning.in_flight and now - returning.closed_at < limit:
            fragments.add(fragment)
    return len(fragments)


def _settle(state: EngineState, returning: Return | None, now: float) -> None:
    if returning is None or state.options.rules == Rules.ARRIVED:
        return
    state.sync_seconds.add(now - returning.closed_at)
