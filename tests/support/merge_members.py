"""Members of a merge by the sizes of their outer gradients, and merges of one fragment after another."""

from collections.abc import Mapping

from diloco.core.merge.member_sizes import NO_PAST, MeasuredMember, UsualSize
from diloco.core.merge.outliers import Verdict, compare, compare_alone

NUMELS = (100, 4)
TENSORS = [("large", 100), ("small", 4)]


def member(learner: str, *sizes: float, steps: int = 1) -> MeasuredMember:
    """A member of these sizes, by tensor."""
    squares = tuple(size**2 * numel * steps for size, numel in zip(sizes, NUMELS, strict=True))
    return MeasuredMember(learner, steps, squares)


def parameters() -> float:
    """How large the fragment's parameters are."""
    return 1.0


def used_to(size: float) -> UsualSize:
    """The usual size of a fragment that was merged once by several learners."""
    return UsualSize(1, size, (size,) * 3)


class Merges:
    """Merges of one fragment, and what is remembered of them."""

    def __init__(self) -> None:
        self.usual = NO_PAST
        self.clipped: set[str] = set()
        """In any of them."""

    def alone(self, size: float) -> bool:
        """Of a learner by itself; returns whether it is merged."""
        found = compare_alone(member("c", size, size), sum(NUMELS), self.usual, parameters)
        self.usual = found.usual
        return not found.left_out

    def together(self, **sizes: float) -> list[str]:
        """Of learners of these sizes; returns who is left out."""
        return sorted(self._compared(sizes).left_out)

    def together_with(self, others: Mapping[str, float], learner: str, size: float) -> float:
        """Of others and one of this ``size``; returns the factor of its values, 0 if it is left out."""
        found = self._compared({**others, learner: size})
        return 0.0 if learner in found.left_out else min(found.clips.get(learner, (1.0,)))

    def _compared(self, sizes: Mapping[str, float]) -> Verdict:
        found = compare([member(name, size, size) for name, size in sizes.items()], TENSORS, self.usual, parameters)
        self.usual = found.usual
        self.clipped |= {*found.clips}
        return found
