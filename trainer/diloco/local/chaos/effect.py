"""What a fault has done: whom it hit, and when they were back. For the session that injects it, and for the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from diloco.local.chaos.spec import Fault, FaultKind
from diloco.spec.names.learner_ids import region_of
from diloco.spec.words import shortlist

MOST_NAMES: Final = 4


@dataclass(frozen=True, slots=True)
class Effect:
    """One fault and its effect."""

    fault: Fault
    recovery_seconds: float | None
    """From the fault until the work of every victim was merged again; None: not seen."""
    recovered: int
    lost: int
    """Learners or syncers that should recover."""

    @classmethod
    def of(cls, fault: Fault, back_at: Sequence[float | None]) -> Self:
        """``back_at``: by victim, when its work was merged again; None: not seen."""
        known = [at for at in back_at if at is not None]
        whole = max(known) if known and len(known) == len(back_at) else None
        seconds = None if whole is None else max(0.0, whole - fault.at_seconds)
        return cls(fault, seconds, recovered=len(known), lost=len(back_at))


def affected(one: Fault, learner_ids: Sequence[str]) -> list[str]:
    """Learners, or the syncer, that a fault has hit."""
    if one.kind is not FaultKind.CUT:
        return list(one.victims)
    return [learner for learner in learner_ids if region_of(learner) in one.victims]


def what_text(one: Fault) -> str:
    """``kill west/old (2 learners)``."""
    names = shortlist(list(one.victims), MOST_NAMES)
    what = f"{one.kind} {one.target}" + (f": {names}" if names and names != one.target else "")
    lasting = f" for {one.seconds:g} s" if one.seconds else ""
    return f"{what}{lasting}" + (f" (refused: {one.refused})" if one.refused else "")
