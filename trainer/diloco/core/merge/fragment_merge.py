"""The merge: combines the members' outer gradients of a fragment, and makes a step of the outer optimizer.

A fragment is processed in blocks of a fixed grid (``sizes.BLOCK``), three times: norms, combination, outer step. A
pass works on any range of blocks in any order, and sums across blocks are rounded once, from f64 parts. So the result
is the same to the bit however the work is cut into shards or divided among threads, and in whatever order members are
given. Members are combined in the buffer of the result: beside it a merge needs one block. How they are combined is the
merge rule's (`rules`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from diloco.core.fragments import Fragment
from diloco.core.merge.agreement import Agreement
from diloco.core.merge.codec import Codec, CodecError, is_finite, require_flat
from diloco.core.merge.member_sizes import NO_PAST, MeasuredMember, UsualSize
from diloco.core.merge.outer_optimizer import nesterov_step
from diloco.core.merge.outliers import LARGEST_NORM, NOT_FINITE, TOO_LONG, Verdict, compare, compare_alone
from diloco.core.merge.rules import MEAN, MemberTensor, MergeRule
from diloco.core.merge.spans import Span, spans_within
from diloco.core.sizes import BLOCK
from diloco.spec.sync import OuterOptimizer

ROW = 4096
"""Elements whose squares are added up in f32; beyond that in f64."""

Pass = Callable[[Iterable[int]], None]
"""A pass of a merge over the blocks of these indices; safe to run in several threads on blocks of their own."""

BlockRunner = Callable[[Pass, range], None]
"""Runs a pass over all blocks, in any order and threads; returns when it is done, raises what it raised."""


def in_this_thread(one_pass: Pass, blocks: range) -> None:
    """The ``BlockRunner`` that leaves the threads to torch."""
    one_pass(blocks)


class MergeError(ValueError):
    """Contributions that cannot be merged. Parameters and momentum are as they were before."""

    def __init__(self, problem: str, verdict: Verdict | None = None) -> None:
        super().__init__(problem)
        self.verdict = verdict or Verdict()
        """Which member caused it, as far as that is known."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """One member's contribution."""

    learner: str
    """Its id; sets the order of the sums, so that the order of arrival does not."""
    weight: float
    """Normalized: the weights of a merge sum to one."""
    payload: Tensor
    """uint8, flat: its outer gradient, encoded."""
    drift: Tensor | None = None
    """f32, flat: added to the decoded outer gradient; the current fragment minus the version that it was measured from
    (``sync.anchor: Current``). None: nothing."""
    steps: int = 1
    """Inner steps that it covers."""


@dataclass(frozen=True, slots=True)
class MergeTarget:
    """Where the result goes."""

    parameters: Tensor
    """f32, flat: a buffer apart from the current parameters. Undefined after an error."""
    momentum: Tensor
    """f32, flat: may be the current momentum itself."""


@dataclass(frozen=True, slots=True)
class MergeStatistics:
    """Statistics of a merge."""

    gradient_norm: float
    """L2 norm of the merged outer gradient."""
    agreement: float
    """Length of the mean of the members' unit directions, 0 to 1: its mean over the tensors merged by direction,
    weighted by elements. M equal members at right angles: 1/sqrt(M). 1 if no tensor is merged by direction."""
    cancelled: tuple[str, ...]
    """Tensors that got no outer gradient because the members' directions cancelled."""
    verdict: Verdict
    """Members that a bounded merge left out or clipped."""
    cosines: Mapping[str, float]
    """By learner: the cosine between its part of the merge and the others' (`agreement`). Empty for a single member."""


def merge_fragment(  # noqa: PLR0913 - the interface to the syncer: keywords, each with its own meaning
    fragment: Fragment,
    contributions: Sequence[Contribution],
    *,
    codec: Codec,
    rule: MergeRule,
    parameters: Tensor,
    momentum: Tensor,
    outer: OuterOptimizer,
    into: MergeTarget,
    run: BlockRunner = in_this_thread,
    usual: UsualSize | None = None,
) -> MergeStatistics:
    """Merge the contributions and step the outer optimizer; the new parameters and momentum go to ``into``.

    All tensors are flat f32 of ``fragment.numel`` elements in host memory. With one member, the merged outer gradient
    is its own, to the bit. ``run`` passes the blocks to threads, and changes no bit. With ``usual``, what is usual for
    the fragment, the merge is bounded: members that are not finite, or absurdly large (`outliers`), are left out and
    the others' weights are normalized to sum to one; the others are clipped. Where none is left out or clipped, no bit
    changes. Without ``usual``, one such member makes the merge fail, or distorts it.

    Raises:
        MergeError: no contribution, two of one learner, weights that do not sum to one, a tensor or payload of a wrong
            size, a contribution that decodes to something that is not finite, a mean that overflows, or no member left.
    """
    merge = FragmentMerge(fragment, tuple(contributions), codec, rule, parameters, momentum, outer, into, usual)
    run(merge.measure, merge.blocks)
    merge.choose()
    run(merge.combine, merge.blocks)
    merge.look_back()
    run(merge.apply, merge.blocks)
    return merge.statistics()


@dataclass
class FragmentMerge:
    """A merge in its three passes: ``measure``, ``combine``, ``apply``, each over all blocks before the next begins.

    A pass may be called for disjoint sets of blocks, in any order or at once; ``merge_fragment`` calls all of them, and
    makes the decisions between them.
    """

    fragment: Fragment
    contributions: tuple[Contribution, ...]
    codec: Codec
    rule: MergeRule
    parameters: Tensor
    momentum: Tensor
    outer: OuterOptimizer
    into: MergeTarget
    usual: UsualSize | None
    """None: members are neither left out nor clipped."""
    _verdict: Verdict = field(init=False)
    _tensors: list[Span] = field(init=False)
    """Empty if there is a single member."""
    _squares: dict[int, tuple[list[float], ...]] = field(init=False)
    """By a tensor's first element, and by member: parts of the sum of squares, which the first pass appends. Parts come
    in any order: they are added with one rounding at the end."""
    _agreement: Agreement | None = field(init=False, default=None)
    """None: only one member is left."""
    _spans: list[Span] = field(init=False)

    def __post_init__(self) -> None:
        _check(self)
        self._verdict = Verdict(usual=self.usual or NO_PAST)
        members = [member for member in self.contributions if member.weight > 0.0]
        self.contributions = tuple(sorted(members, key=lambda member: member.learner))
        slots = self.fragment.slots if len(members) > 1 else ()
        self._tensors = [Span(one.tensor.name, one.offset, one.offset + one.tensor.numel, ()) for one in slots]
        self._squares = {one.start: tuple([] for _ in members) for one in self._tensors}

    @property
    def blocks(self) -> range:
        """All blocks of the fragment."""
        return range(-(-self.fragment.numel // BLOCK))

    def measure(self, blocks: Iterable[int]) -> None:
        """First pass: the members' norms, if there are several.

        Raises:
            MergeError: a contribution is not finite or too long, in a merge that is not bounded.
        """
        if not self._tensors:
            return
        scratch = self._scratch()
        for block in blocks:
            found = self._parts(self._tensors, block)
            touched = [(self._squares[one.start], start, stop) for one, start, stop in found]
            for index, member in enumerate(self.contributions):
                values = self._decode(member, block, scratch)
                for parts, start, stop in touched:
                    square = _sum_of_squares(values[start:stop])
                    if self.usual is None and _too_long(square):
                        raise self._fault(block, scratch)
                    parts[index].append(square)

    def choose(self) -> None:
        """After the first pass: decide which members are left out or clipped, and so how they are combined.

        Raises:
            MergeError: no member is left.
        """
        members, kept = self.contributions, list(range(len(self.contributions)))
        if not self._tensors:
            self._spans = [Span(self.fragment.slots[0].tensor.name, 0, self.fragment.numel, self._weights)]
            return
        squares = [tuple(math.fsum(parts) for parts in self._squares[one.start]) for one in self._tensors]
        if self.usual is not None:
            self._verdict = self._compare(squares, self.usual)
            kept = [index for index in kept if members[index].learner not in self._verdict.left_out]
            if not kept:
                raise MergeError("no outer gradient can be merged", self._verdict)
        if len(kept) < len(members):
            total = math.fsum(members[index].weight for index in kept)
            self.contributions = tuple(replace(members[index], weight=members[index].weight / total) for index in kept)
        rule = self.rule if len(kept) > 1 else MEAN
        unclipped = (1.0,) * len(squares)
        clips = [self._verdict.clips.get(member.learner, unclipped) for member in self.contributions]
        tensors = [
            MemberTensor(
                slot,
                tuple(math.sqrt(of_tensor[index]) for index in kept),
                tuple(clip[number] for clip in clips),
            )
            for number, (slot, of_tensor) in enumerate(zip(self.fragment.slots, squares, strict=True))
        ]
        self._spans = rule.spans(tensors, self._weights)
        if len(kept) > 1:
            seed = math.fsum(sum(of_tensor) for of_tensor in squares)
            self._agreement = Agreement(len(kept), seed, len(self.blocks))

    def _compare(self, squares: list[tuple[float, ...]], usual: UsualSize) -> Verdict:
        """Leave out members that are not finite or too long, and compare the rest with each other."""
        out: dict[str, str] = {}
        measured: list[MeasuredMember] = []
        numel = self.fragment.numel
        tensors = [(slot.tensor.name, slot.tensor.numel) for slot in self.fragment.slots]
        if self.codec.encoding.kept:
            tensors = [(f"fragment {self.fragment.index}", elements) for _, elements in tensors]
        for index, member in enumerate(self.contributions):
            own = tuple(of_tensor[index] for of_tensor in squares)
            total = sum(own)
            if self.codec.encoding.kept:
                # It is compared as a whole: a small tensor has all of its values sent in one merge and none in others.
                own = tuple(total * elements / numel for _, elements in tensors)
            if _too_long(total):
                out[member.learner] = TOO_LONG if math.isfinite(total) else NOT_FINITE
            else:
                measured.append(MeasuredMember(member.learner, member.steps, own))
        verdict = compare(measured, tensors, usual, self._parameters_size)
        return replace(verdict, left_out={**out, **verdict.left_out})

    def look_back(self) -> None:
        """After the second pass: compare the single member of a bounded merge with the past.

        Raises:
            MergeError: it is too large.
        """
        if self.usual is None or self._tensors:
            return
        (member,), (span,) = self.contributions, self._spans
        measured = MeasuredMember(member.learner, member.steps, (math.fsum(span.squares),))
        self._verdict = compare_alone(measured, self.fragment.numel, self.usual, self._parameters_size)
        if reason := self._verdict.left_out.get(member.learner):
            raise MergeError(f"the outer gradient of {member.learner}: {reason}", self._verdict)

    def combine(self, blocks: Iterable[int]) -> None:
        """Second pass: what the rule makes of the members, into ``into.parameters``; not yet of its final length.

        Raises:
            MergeError: a contribution, or what is made of them, is not finite.
        """
        scratch = self._scratch()
        for block in blocks:
            made = self.into.parameters[self._within(block)]
            parts = list(self._parts(self._spans, block))
            values = (self._decode(member, block, scratch) for member in self.contributions)
            if self._agreement is None:
                MEAN.combine(values, parts, made)
            else:
                self._agreement.watch(self.rule, values, parts, made, block)
            for span, start, stop in parts:
                square = _sum_of_squares(made[start:stop])
                if _too_long(square):
                    raise self._fault(block, scratch)
                span.squares.append(square)

    def apply(self, blocks: Iterable[int]) -> None:
        """Third pass: scale mean directions to their length, and make the outer optimizer's step."""
        lengths = {span.start: span.length for span in self._spans if span.norm is not None}
        for block in blocks:
            within = self._within(block)
            gradient = self.into.parameters[within]
            for span, start, stop in self._parts(self._spans, block):
                if span.start in lengths:
                    gradient[start:stop].mul_(lengths[span.start])
            momentum, into = self.momentum[within], self.into.momentum[within]
            nesterov_step(gradient, self.parameters[within], momentum, into, self.outer)

    def statistics(self) -> MergeStatistics:
        """The statistics; after ``combine``."""
        by_direction = [span for span in self._spans if span.norm is not None]
        agreed = math.fsum(span.agreement * span.numel for span in by_direction)
        return MergeStatistics(
            gradient_norm=math.sqrt(math.fsum(math.fsum(span.squares) * span.length**2 for span in self._spans)),
            agreement=agreed / sum(span.numel for span in by_direction) if by_direction else 1.0,
            cancelled=tuple(span.name for span in by_direction if span.cancelled),
            verdict=self._verdict,
            cosines=self._cosines(),
        )

    def _cosines(self) -> dict[str, float]:
        found = [] if self._agreement is None else self._agreement.cosines()
        members = zip(self.contributions, found, strict=False)
        return {member.learner: cosine for member, cosine in members if cosine is not None}

    @property
    def _weights(self) -> tuple[float, ...]:
        return tuple(member.weight for member in self.contributions)

    def _parameters_size(self) -> float:
        squares = [_sum_of_squares(self.parameters[self._within(block)]) for block in self.blocks]
        return math.sqrt(math.fsum(squares) / self.fragment.numel)

    def _scratch(self) -> Tensor:
        return torch.empty(min(BLOCK, self.fragment.numel))

    def _within(self, block: int) -> slice:
        return slice(block * BLOCK, min((block + 1) * BLOCK, self.fragment.numel))

    def _parts(self, spans: list[Span], block: int) -> Iterator[tuple[Span, int, int]]:
        within = self._within(block)
        return spans_within(spans, within.start, within.stop)

    def _decode(self, member: Contribution, block: int, scratch: Tensor) -> Tensor:
        within = self._within(block)
        buffer = scratch[: within.stop - within.start]
        values = self.codec.decode(member.payload, within.start, buffer)
        return values if member.drift is None else torch.add(values, member.drift[within], out=buffer)

    def _fault(self, block: int, scratch: Tensor) -> MergeError:
        """The error for a block that is too large, naming the member if only one is at fault."""
        members = self.contributions
        broken = [member for member in members if not is_finite(self._decode(member, block, scratch))]
        out = {**self._verdict.left_out, **{member.learner: NOT_FINITE for member in broken}}
        if broken:
            text = f"the outer gradient of {broken[0].learner} holds values that are not finite"
        elif len(members) == 1:
            text = f"the outer gradient of {members[0].learner} is too large for float32"
            out[members[0].learner] = TOO_LONG
        else:
            text = f"the mean of the outer gradients of fragment {self.fragment.index} is too large for float32"
        return MergeError(text, replace(self._verdict, left_out=out))


def _too_long(square: float) -> bool:
    """Whether what has this sum of squares is refused; it is where there is no such sum."""
    return not square < LARGEST_NORM**2


def _sum_of_squares(values: Tensor) -> float:
    """Rows of ``ROW`` in f32, their sum in f64; all in f64 where f32 squares may leave its range."""
    whole = values.numel() // ROW * ROW
    total = 0.0
    if whole:
        total += torch.linalg.vector_norm(values[:whole].view(-1, ROW), dim=1).double().square_().sum().item()
    total += torch.linalg.vector_norm(values[whole:]).item() ** 2
    if not 1e-20 < total < 1e30:
        total = values.double().square_().sum().item()
    return total


def _check(merge: FragmentMerge) -> None:
    members, numel = merge.contributions, merge.fragment.numel
    if not members or len({member.learner for member in members}) != len(members):
        raise MergeError("a merge takes at least one contribution, and one from each learner")
    weights = [member.weight for member in members]
    if not all(weight >= 0.0 for weight in weights) or not math.isclose(math.fsum(weights), 1.0, abs_tol=1e-6):
        raise MergeError(f"the weights of a merge must not be negative and must sum to one; these are {weights}")
    drifts = [member.drift for member in members if member.drift is not None]
    for tensor in (merge.parameters, merge.momentum, merge.into.parameters, merge.into.momentum, *drifts):
        try:
            require_flat(tensor)
        except CodecError as error:
            raise MergeError(str(error)) from error
        if tensor.numel() != numel:
            raise MergeError(
                f"fragment {merge.fragment.index} has {numel} elements, a tensor of its merge {len(tensor)}"
            )
    if merge.into.parameters.data_ptr() == merge.parameters.data_ptr():
        raise MergeError("the merged parameters need a buffer of their own")
    for member in members:
        if member.payload.numel() != merge.codec.payload_bytes(numel):
            raise MergeError(
                f"the {merge.codec.name} payload of {member.learner} has {member.payload.numel()} bytes, "
                f"not the {merge.codec.payload_bytes(numel)} of {numel} elements"
            )
