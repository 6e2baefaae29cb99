"""Decides which members of a merge are too large to be credible (ours).

A single outer gradient that is far larger than the others would move every element: RDA scales each tensor's direction
to the mean of the members' norms. So members are compared, tensor by tensor, by the root mean square of their elements
divided by the square root of their inner steps, because more steps move a learner further. Each member is compared with
the upper median of the others, so that a minority cannot set the standard, however large or small its values are. If
the others have hardly trained a tensor, the member is compared with what they did on the whole fragment: experts and
adapters may be trained by one learner alone.

A member is left out if it is more than ``LARGEST_RATIO`` times as large as the others and far above its own usual size;
the second condition is needed because the others may be in their warm-up, and small. All other members are merged
unchanged, to the bit. If there are two members and they differ from the beginning, there is no way to tell which one is
wrong: the smaller one is believed. A learner that is alone is compared with its own past, and with the fragment's
parameters until it has one. One whose others send zeros is compared with both.

A learner that is alone can grow without limit, because a size that lasts becomes its usual one. So when it is merged
with others, only the sizes that it had in merges with others can excuse it. Sizes that it had alone can lower that
excuse, but never raise it. An honest learner that was alone from its beginning has no excuse: if others join and are in
their warm-up, it is left out until it is within the bound.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

LARGEST_RATIO = 16.0
"""Multiple of the others' size. With three or more members, including slow, restarted and cut-off ones, no tensor was
above 4.5 times in the simulated runs of ``benchmarks/quality.py``."""
OWN_RATIO = 4.0
"""A member may be this many times as large as it usually is, whatever the size of the others. With a single other
member the factor is ``LARGEST_RATIO``, because that one may be the outlier: in its warm-up it made the other look 40
times as large. A member's excuse counts up to this many times the others' size. 4 times 4 is ``LARGEST_RATIO``, so with
two or more others a learner gains nothing by growing slowly. With one other, a learner that grows slowly reaches 4
times 16, which is 64 times the other's size."""
LEAST_PAST = 4
"""A learner that is alone is compared with its past only after this many merges of a fragment, when its warm-up is
over."""
LEAST_STANDARD = 0.02
"""Stands in for the size of parameters that are smaller, as adapters and some output layers begin as zeros (ours): the
usual standard deviation of weights at initialization."""
MEMORY = 0.8
"""Weight of the old usual size when another is added."""

NOT_FINITE = "it holds values that are not finite"
LARGEST_NORM = 1e30
"""An outer gradient as long as this or longer is refused (ours): with it, momentum and parameters could leave f32's
range."""
TOO_LONG = f"it is longer than {LARGEST_NORM:g}"


@dataclass(frozen=True, slots=True)
class UsualSize:
    """The usual size of a learner's contributions to a fragment."""

    size: float
    """Moving average of sizes: root mean square of the elements over the root of the inner steps."""
    merges: int
    in_company: float | None = None
    """The part of it that can excuse the learner in a merge with others; None: nothing excuses it."""

    def after(self, size: float, *, in_company: bool) -> "UsualSize":
        """The usual size after one more contribution; ``in_company``: it was compared with others."""
        excuse = self.in_company
        if excuse is None:
            excuse = size if in_company else None
        elif in_company or size < excuse:
            excuse = _average(excuse, size)
        return UsualSize(_average(self.size, size), self.merges + 1, excuse)


@dataclass(frozen=True, slots=True)
class MeasuredMember:
    """One member's outer gradient, measured."""

    learner: str
    steps: int
    squares: tuple[float, ...]
    """Sums of squares, by tensor."""
    usual: UsualSize | None
    """None: no contribution of it was merged before."""

    def size(self, tensor: int, numel: int) -> float:
        """Of one tensor."""
        return math.sqrt(self.squares[tensor] / numel / max(1, self.steps))

    def whole_size(self, numel: int) -> float:
        """Of the fragment."""
        return math.sqrt(math.fsum(self.squares) / numel / max(1, self.steps))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is left out, and the others' sizes to remember."""

    left_out: Mapping[str, str]
    """Reasons, by learner."""
    sizes: Mapping[str, float]
    """By learner: the sizes that update their usual sizes."""
    in_company: frozenset[str] = frozenset()
    """Learners whose sizes were compared with others'."""

    @property
    def broken(self) -> frozenset[str]:
        """Learners that are left out whatever the others sent."""
        return frozenset(learner for learner, reason in self.left_out.items() if reason in (NOT_FINITE, TOO_LONG))


def compare(
    members: Sequence[MeasuredMember], tensors: Sequence[tuple[str, int]], parameters: Callable[[], float]
) -> Verdict:
    """Compare two or more members by their ``tensors`` (name, elements). All their squares are finite.

    ``parameters`` measures the root mean square of the fragment's parameters.
    """
    numel = sum(elements for _, elements in tensors)
    whole = [member.whole_size(numel) for member in members]
    whole_of_others = [_middle_of_others(whole, index) for index in range(len(members))]
    own_ratio = OWN_RATIO if len(members) > 2 else LARGEST_RATIO
    own = [
        member.usual is not None and member.usual.in_company is not None and size <= own_ratio * member.usual.in_company
        for member, size in zip(members, whole, strict=True)
    ]
    standards = [
        others if others or not size else _own_standard(member, parameters)
        for member, size, others in zip(members, whole, whole_of_others, strict=True)
    ]
    left_out: dict[str, str] = {}
    for tensor, (name, elements) in enumerate(tensors):
        sizes = [member.size(tensor, elements) for member in members]
        for index, member in enumerate(members):
            standard = max(_middle_of_others(sizes, index), standards[index])
            if sizes[index] > LARGEST_RATIO * standard and not own[index]:
                ratio = sizes[index] / standard
                than = "the others are" if whole_of_others[index] else "its parameters, and the others are zeros"
                left_out.setdefault(member.learner, f"it is {ratio:.3g} times as large in {name} as {than}")
    sizes_kept = {
        member.learner: min(size, OWN_RATIO * others) if others > 0.0 else size
        for member, size, others in zip(members, whole, whole_of_others, strict=True)
        if member.learner not in left_out
    }
    compared = zip(members, whole_of_others, strict=True)
    return Verdict(left_out, sizes_kept, frozenset(member.learner for member, others in compared if others > 0.0))


def compare_alone(member: MeasuredMember, numel: int, parameters: Callable[[], float]) -> Verdict:
    """Compare the single member of a merge with its past, or the parameters as in `compare`. Its squares are finite.

    Its size is remembered up to the bound even if it is left out: a size that lasts becomes the usual one.
    """
    size, usual = member.whole_size(numel), member.usual
    past = usual.size if usual is not None and usual.merges >= LEAST_PAST else 0.0
    standard = past or _own_standard(member, parameters)
    if size <= LARGEST_RATIO * standard:
        return Verdict({}, {member.learner: size})
    than = "this learner's usually are" if past else "its parameters"
    text = f"it is {size / standard:.3g} times as large as {than}, and no other is there"
    return Verdict({member.learner: text}, {member.learner: LARGEST_RATIO * standard})


def _own_standard(member: MeasuredMember, parameters: Callable[[], float]) -> float:
    """What a member is compared with where others are no measure."""
    return max(parameters(), LEAST_STANDARD, 0.0 if member.usual is None else member.usual.size)


class UsualSizes:
    """The usual sizes of every learner's contributions to every fragment, since the syncer started."""

    def __init__(self) -> None:
        self._usual: dict[tuple[str, int], UsualSize] = {}

    def of(self, learner: str, fragment: int) -> UsualSize | None:
        """The usual size; None: no contribution was merged."""
        return self._usual.get((learner, fragment))

    def remember(self, fragment: int, verdict: Verdict) -> None:
        """Add the sizes of a verdict."""
        for learner, size in verdict.sizes.items():
            in_company = learner in verdict.in_company
            before = self._usual.get((learner, fragment))
            if before is None:
                after = UsualSize(size, 1, size if in_company else None)
            else:
                after = before.after(size, in_company=in_company)
            self._usual[learner, fragment] = after


def _average(old: float, new: float) -> float:
    return MEMORY * old + (1 - MEMORY) * new


def _middle_of_others(sizes: Sequence[float], index: int) -> float:
    """The median of the others, the larger of two."""
    others = sorted([*sizes[:index], *sizes[index + 1 :]])
    return others[len(others) // 2]
