"""Formats decisions as readable lines, for the log and for ``diloco replay --explain``."""

from typing import assert_never

from diloco.core.engine import actions
from diloco.core.engine.actions import Action


def describe(action: Action) -> str:  # noqa: C901, PLR0911, PLR0912  # a table of actions
    """A decision and its reason in one readable line."""
    match action:
        case actions.Note(kind, reason, learner, fragment):
            about = " ".join([*([learner] if learner else []), *([f"fragment {fragment}"] if fragment >= 0 else [])])
            return f"{kind} {about}: {reason}" if about else f"{kind}: {reason}"
        case actions.Admit():
            return f"Admit {action.learner} as incarnation {action.incarnation}: {action.reason}"
        case actions.Refuse():
            return f"Refuse {action.learner} ({action.refusal}): {action.reason}"
        case actions.Fence():
            return f"Fence {action.learner}, incarnation {action.incarnation} ({action.refusal}): {action.reason}"
        case actions.AskFragment(learner, _, fragment, version, attempt, reason):
            return f"AskFragment {fragment} of {learner} for version {version}, attempt {attempt}: {reason}"
        case actions.Merge(members=()):
            return f"Merge fragment {action.fragment} to version {action.version}: {action.reason}"
        case actions.Merge():
            members = ", ".join(
                f"{m.learner} ({m.weight:.3f}, {m.steps} steps, {m.tokens} tokens, from version {m.base_version})"
                for m in action.members
            )
            return f"Merge fragment {action.fragment} to version {action.version} of {members}: {action.reason}"
        case actions.Discard(learner, _, fragment, version, attempt, reason):
            return f"Discard fragment {fragment} of {learner} for version {version}, attempt {attempt}: {reason}"
        case actions.Broadcast():
            told = len(action.learners)
            return f"Broadcast fragment {action.fragment} version {action.version} to {told} learners: {action.reason}"
        case actions.SetTimer(name, at):
            return f"SetTimer {name} at {at:.3f} s"
        case actions.CancelTimer(name):
            return f"CancelTimer {name}"
        case actions.Checkpoint(reason):
            return f"Checkpoint: {reason}"
        case actions.Evaluate():
            model = "the final model" if action.final else f"the model at {action.tokens} merged tokens"
            return f"Evaluate {model} at {action.learner}: {action.reason}"
        case actions.Finish(complete, reason):
            return f"Finish, {'complete' if complete else 'failed'}: {reason}"
        case _:
            assert_never(action)
