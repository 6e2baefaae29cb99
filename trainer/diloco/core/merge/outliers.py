"""Decides which members of a merge are left out, and how far the others are clipped (ours).

A single outer gradient that is far larger than the others would move every element: RDA scales each tensor's direction
to the mean of the members' norms. So each member's tensor is clipped at twice the merge's standard (`member_sizes`).

A member that is more than ``LARGEST_RATIO`` times as large as the standard is left out: that is no training. It must
also be far above what is usual, because the others may be in their warm-up, and small. Where half of the members differ
from the other half and there is no past to tell which half is wrong, it is compared with the fragment's parameters, and
so is a learner that is alone until it has a past, or that is beside zeros.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from diloco.core.merge.member_sizes import LARGEST_RATIO, NO_PAST, MeasuredMember, Standards, Tensors, UsualSize

OWN_RATIO = 4.0
"""A member may be this many times as large as what is usual, whatever the size of the others."""
LEAST_PAST = 4
"""A learner that is alone is compared with the past only after this many merges of a fragment, when its warm-up is
over."""
LEAST_STANDARD = 0.02
"""Stands in for the size of parameters that are smaller, as adapters and some output layers begin as zeros (ours): the
usual standard deviation of weights at initialization."""

NOT_FINITE = "it holds values that are not finite"
LARGEST_NORM = 1e30
"""An outer gradient as long as this or longer is refused (ours): with it, momentum and parameters could leave f32's
range."""
TOO_LONG = f"it is longer than {LARGEST_NORM:g}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is left out, who is clipped, and what is usual from now on."""

    left_out: Mapping[str, str] = field(default_factory=dict)
    """Reasons, by learner."""
    clips: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By learner that is clipped: the factor of each tensor, at most 1."""
    usual: UsualSize = NO_PAST

    @property
    def broken(self) -> frozenset[str]:
        """Learners that are left out whatever the others sent."""
        return frozenset(learner for learner, reason in self.left_out.items() if reason in (NOT_FINITE, TOO_LONG))


def compare(
    members: Sequence[MeasuredMember], tensors: Tensors, usual: UsualSize, parameters: Callable[[], float]
) -> Verdict:
    """Compare members by their ``tensors``. All their squares are finite.

    ``parameters`` measures the root mean square of the fragment's parameters.
    """
    numel = sum(elements for _, elements in tensors)
    able = [one for one in members if one.whole_size(numel) > 0.0]
    if len(able) < 2:  # zeros are no measure
        return compare_alone(able[0], numel, usual, parameters) if able else Verdict(usual=usual)
    standards = Standards.of(able, tensors, usual)
    out: dict[str, str] = {}
    clips: dict[str, tuple[float, ...]] = {}
    for one in able:
        sizes = [one.size(index, elements) for index, (_, elements) in enumerate(tensors)]
        excused = one.whole_size(numel) <= OWN_RATIO * usual.of_several
        if not excused and (reason := _absurd(sizes, tensors, standards, parameters)):
            out[one.learner] = reason
            continue
        factors = tuple(standards.clip_of(index, size) for index, size in enumerate(sizes))
        if min(factors) < 1.0:
            clips[one.learner] = factors
    return Verdict(out, clips, usual.after_several(standards))


def _absurd(
    sizes: Sequence[float], tensors: Tensors, standards: Standards, parameters: Callable[[], float]
) -> str | None:
    """Why a member of these sizes is left out; None: it is not."""
    for size, standard, (name, _) in zip(sizes, standards.tensors, tensors, strict=True):
        base, than = max(standard, standards.whole), "the others are"
        if size > LARGEST_RATIO * base and not standards.settled:
            base, than = max(base, parameters(), LEAST_STANDARD), "the fragment's parameters"
        if size > LARGEST_RATIO * base:
            return f"it is {size / base:.3g} times as large in {name} as {than}"
    return None


def compare_alone(member: MeasuredMember, numel: int, usual: UsualSize, parameters: Callable[[], float]) -> Verdict:
    """Compare the only member of a merge that is not zero with what is usual, or the parameters as in `compare`.

    Its squares are finite. Its size is remembered up to the bound even if it is left out: a size that lasts becomes the
    usual one.
    """
    size = member.whole_size(numel)
    past = max(usual.size, usual.of_several) if usual.merges >= LEAST_PAST else 0.0
    standard = past or max(parameters(), LEAST_STANDARD, usual.size)
    after = usual.after_one(min(size, LARGEST_RATIO * standard))
    if size <= LARGEST_RATIO * standard:
        return Verdict(usual=after)
    than = "outer gradients of this fragment usually are" if past else "its parameters"
    text = f"it is {size / standard:.3g} times as large as {than}, and no other is there"
    return Verdict({member.learner: text}, usual=after)
