"""Which versions of a fragment are in the final model: it is their mean (``sync.averageLast``).

A version is averaged if the last part of the budget had begun when its merge was ordered. Once the budget is merged and
no round is under way, each fragment gets one more version, without members: the mean.
"""

from diloco.core.engine.actions import Action, Merge
from diloco.core.engine.records import Round
from diloco.core.engine.state import EngineState
from diloco.spec.status.engine import Phase


def averaged_with_next(state: EngineState, fragment: int) -> int:
    """Number of versions in the fragment's mean if the next one counts; 0 if it does not."""
    share = state.options.average_last
    begun = share > 0 and state.merged_tokens >= (1 - share) * state.budget_tokens
    return state.averaged[fragment] + 1 if begun else 0


def order_means(state: EngineState, now: float) -> list[Action]:
    """Make the mean of each fragment with two or more averaged versions its last version, once no round is under way.

    A round without members is how the version is made: it ends as others do.
    """
    actions: list[Action] = []
    if state.phase != Phase.EVALUATING or state.rounds:
        return actions
    for fragment, averaged in enumerate(state.averaged):
        if averaged > 1:
            version = state.versions[fragment] + 1
            state.rounds[fragment] = made = Round(state.launched, fragment, version)
            made.launched_at = made.quorum_at = made.closed_at = now
            reason = f"the budget is merged: the mean of the last {averaged} versions"
            actions.append(Merge(fragment, version, (), reason, averaged))
    return actions
