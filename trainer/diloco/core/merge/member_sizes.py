"""How large the members' outer gradients are, and what is usual (ours).

A size is the root mean square of a tensor's elements over the square root of the inner steps. A learner moves at least
as the square root of its steps (a random walk), at most in proportion to them (always in one direction). So beside
others with a quarter of its steps, an honest learner's size is at most twice theirs; and a learner gains less from
steps that it only claims than if sizes were in proportion to steps.

The *standard* of a merge is the members' median size, for each tensor and for the whole fragment. Of an even number of
members, one half cannot set it against the other: the sizes that merges of this fragment usually have break the tie.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

LARGEST_RATIO = 16.0
"""Multiple of the standard beyond which an outer gradient is absurd. With three or more members, including slow,
restarted and cut-off ones, no tensor was above 4.5 times in the simulated runs of ``benchmarks/quality.py``."""
CLIP_RATIO = 2.0
"""Multiple of the standard at which a member's tensor is clipped. ``benchmarks/poison.py`` compares."""
MEMORY = 0.8
"""Weight of the old usual size when another is added."""
Tensors = Sequence[tuple[str, int]]
"""Name and number of elements of each."""


@dataclass(frozen=True, slots=True)
class MeasuredMember:
    """One member's outer gradient, measured."""

    learner: str
    steps: int
    squares: tuple[float, ...]
    """Sums of squares, by tensor."""

    def size(self, tensor: int, numel: int) -> float:
        """Of one tensor."""
        return math.sqrt(self.squares[tensor] / numel / max(1, self.steps))

    def whole_size(self, numel: int) -> float:
        """Of the fragment."""
        return math.sqrt(math.fsum(self.squares) / numel / max(1, self.steps))


@dataclass(frozen=True, slots=True)
class UsualSize:
    """The usual size of one fragment's outer gradients: moving averages over its merges."""

    merges: int = 0
    size: float = 0.0
    """Of the fragment, in all merges; in those of a single member its own size, so that one that lasts becomes the
    usual one."""
    standards: tuple[float, ...] = ()
    """By tensor, and of the whole fragment at the end: only of merges of several members, so that no member sets them
    alone. Empty: there was none, or half of the members have always differed from the other half."""

    @property
    def of_several(self) -> float:
        """Of the fragment, in merges of several; 0: not known."""
        return self.standards[-1] if self.standards else 0.0

    def is_of(self, tensors: int) -> bool:
        """Whether these are possible sizes of a fragment of so many tensors."""
        return len(self.standards) in (0, tensors + 1) and all(
            0.0 <= one < math.inf for one in (self.merges, self.size, *self.standards)
        )

    def after_one(self, size: float) -> "UsualSize":
        """After a merge of a single member of this size."""
        return replace(self, merges=self.merges + 1, size=_average(self.size, size) if self.merges else size)

    def after_several(self, standards: "Standards") -> "UsualSize":
        """After a merge of several members."""
        if not standards.settled:
            return self
        new = (*standards.tensors, standards.whole)
        before = self.standards or new
        return replace(self.after_one(standards.whole), standards=tuple(map(_average, before, new)))


NO_PAST = UsualSize()
"""Of a fragment that was never merged."""


@dataclass(frozen=True, slots=True)
class Standards:
    """What the members of one merge are compared with: the median sizes of two or more."""

    tensors: tuple[float, ...]
    whole: float
    """Of the fragment."""
    settled: bool
    """More than half of the members, or what is usual, agree on them; False: half differ from half, and nothing is
    known of the past. Then these are the smaller half's, which cannot do much harm."""

    @classmethod
    def of(cls, members: Sequence[MeasuredMember], tensors: Tensors, usual: UsualSize) -> Self:
        """Of the members' ``tensors``."""
        numel = sum(elements for _, elements in tensors)
        columns = [[one.size(index, elements) for one in members] for index, (_, elements) in enumerate(tensors)]
        columns.append(sorted(one.whole_size(numel) for one in members))
        half = len(members) // 2
        tie = len(members) % 2 == 0
        past = usual.standards if tie else ()
        settled = bool(past) or not tie or columns[-1][half] <= CLIP_RATIO * columns[-1][half - 1]
        *middles, whole = (_median([*sizes, *past[index : index + 1]]) for index, sizes in enumerate(columns))
        return cls(tuple(middles), whole, settled)

    def clip_of(self, tensor: int, size: float) -> float:
        """The factor, at most 1, by which a member's tensor of this size is clipped.

        Where most members have hardly trained a tensor, such as an expert or adapter, it is compared with the whole.
        """
        standard = self.tensors[tensor]
        limit = CLIP_RATIO * (standard if standard > self.whole / LARGEST_RATIO else self.whole)
        return limit / size if size > limit else 1.0


def _average(old: float, new: float) -> float:
    return MEMORY * old + (1 - MEMORY) * new


def _median(sizes: Sequence[float]) -> float:
    """The smaller of two."""
    return sorted(sizes)[(len(sizes) - 1) // 2]
