"""Moves of learners and of the syncer's merges, which a script makes in any order."""

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from diloco.core.account.time_spent import TimeSpent
from diloco.core.engine.actions import Merge
from diloco.core.engine.events import LearnersPlanned, LeftOut, Merged
from tests.support.engine_script import POOL, Script, name, of

LEARNERS = 3
FRAGMENTS = 4
KINDS = ["step", "push", "again", "late", "decline", "leave", "rejoin", "restart", "wait", "merge", "spoil"]


@dataclass(frozen=True)
class Move:
    """What happens."""

    kind: str
    learner: int
    number: int
    """Of steps, of a fragment, of seconds or of a merge."""
    spent: TimeSpent | None = None
    """What a learner claims with a step; None: as it was."""


MovesStrategy = st.SearchStrategy[list[Move]]


def moves(*more: str, size: int = 120, spent: st.SearchStrategy[TimeSpent] | None = None) -> MovesStrategy:
    """Up to ``size`` moves of `KINDS` and of these."""
    kinds, learners = st.sampled_from([*KINDS, *more]), st.integers(0, LEARNERS - 1)
    claims = st.none() if spent is None else spent
    return st.lists(st.builds(Move, kinds, learners, st.integers(0, FRAGMENTS - 1), claims), max_size=size)


def play(  # noqa: C901, PLR0912 - a table of moves
    script: Script, chosen: list[Move], after_each: Callable[[Script], None] = lambda _: None
) -> None:
    """Make the possible moves; merges end when a move says so, in any order."""
    under_way: list[Merge] = []
    processes = 0
    for move in chosen:
        before, learner, number = len(script.log), move.learner, move.number
        match move.kind:
            case "step":
                script.step(learner, number + 1, spent=move.spent)
            case "push" if (learner, number) in script.asks:
                script.push(learner, number, steps=number)
            case "again" if learner in script.pushed:
                script.do(script.pushed[learner])
            case "late" if (learner, number) in script.asks:
                script.push(learner, number, attempt=0)
            case "old" if (learner, number) in script.asks:
                script.push(learner, number, steps=7, base_version=max(0, script.asks[learner, number].version - 3))
            case "decline" if (learner, number) in script.asks:
                script.decline(learner, number)
            case "leave":
                script.leave(learner, clean=bool(number))
            case "rejoin":
                script.join(learner, versions=script.engine.versions)
                script.ready(learner)
            case "restart":
                processes += 1
                script.join(learner, f"again-{processes}")
                script.ready(learner)
            case "wait":
                script.wait(float(number * number))
            case "merge" | "make" | "fail" | "spoil" if under_way:
                merge = under_way.pop(number % len(under_way))
                spoilt = LeftOut(merge.members[learner % len(merge.members)].learner, "it is broken", broken=True)
                if move.kind == "fail":
                    script.do(Merged(merge.fragment, merge.version, "0" * 32, 0.01, failed=True))
                else:
                    left_out = (spoilt,) if move.kind == "spoil" else ()
                    script.merge_done(merge, applied=move.kind != "make", left_out=left_out)
            case "applied":
                version = script.engine.versions[number]
                script.applied(learner, number, version, step=script.steps.get(learner, 0) + number)
            case "plan":
                script.do(LearnersPlanned(tuple(name(index) for index in range(1 + number % LEARNERS)), (POOL,)))
            case _:
                pass
        under_way += of([action for _, action in script.log[before:]], Merge)
        after_each(script)
