"""When merging begins, and from when on what is merged counts for the budget (ours).

Claims are checked against what other learners do, and at the start of a job nothing is known of them. So merging begins
once half of the planned learners have made a step. What is merged counts once more than half of them are measured, at
least two, and all that have a session; until then it is withheld. Then as much of it counts as all planned learners
could have made in that time, at the speed that counts of those that are measured. `sync.startupSeconds` after the first
join both happen anyway, so that learners whose mates never come are not stopped.

An elastic pool counts with its minimum. All of this outlasts a restart of the syncer.
"""

from math import fsum
from operator import mul

from diloco.core.engine.actions import Action, Note, NoteKind
from diloco.core.engine.members import comparison
from diloco.core.engine.state import EngineState


def advance(state: EngineState, now: float) -> list[Action]:
    """Begin what is due. Called after every event until what is merged counts."""
    if state.elapsed_since is None:
        return []
    actions: list[Action] = []
    over = state.elapsed(now) >= state.options.startup_seconds
    expected = state.roster.expected
    half, reported = max(1, (expected + 1) // 2), len(state.roster.reported)
    if not state.begun and (reported >= half or (over and reported)):
        state.begun = True
        late = ", and sync.startupSeconds are over" if reported < half else ""
        state.phase_reason = f"{reported} of {expected} planned learners have made a step{late}"
        actions.append(Note(NoteKind.MERGING_BEGINS, state.phase_reason))
    most, measured = max(expected // 2 + 1, min(2, len(state.planned))), len(state.roster.measured)
    enough = measured >= most and not state.roster.starting
    if state.begun and (enough or (over and measured) or len(state.planned) == 1):
        withheld, counts = _count_withheld(state, now)
        late = "" if enough or len(state.planned) == 1 else ", and sync.startupSeconds are over"
        text = f"{measured} of {expected} planned learners are measured{late}"
        text += f"; {counts} of {withheld} tokens that were merged before count" if withheld else ""
        actions.append(Note(NoteKind.WORK_COUNTS, text))
    return actions


def _count_withheld(state: EngineState, now: float) -> tuple[int, int]:
    """Count what was withheld; returns the tokens of all fragments, and as many of these as count."""
    comparison.compare(state)
    speeds = [state.learners[name].counted_tokens_per_second for name in state.roster.measured]
    possible = state.elapsed(now) * fsum(speeds) / len(speeds) * len(state.planned) if speeds else 0.0
    state.confirmed = True
    state.roster.gather()
    withheld, state.withheld = state.withheld, [0] * len(state.withheld)
    counts = [min(tokens, int(possible)) for tokens in withheld]
    for fragment, tokens in enumerate(counts):
        state.count_tokens(fragment, tokens)
    if merged := fsum(map(mul, state.options.shares, withheld)):
        for record in state.learners.values():
            record.merged_tokens *= state.merged_tokens / merged
    return sum(withheld), sum(counts)
