"""The merge: combines the members' outer gradients of a fragment, and makes a step of the outer optimizer.

A fragment is processed in blocks of a fixed grid (``sizes.BLOCK``), three times: norms, weighted means, outer step. A
pass works on any range of blocks in any order, and sums across blocks are rounded once, from f64 parts. So the result
is the same to the bit however the work is cut into shards or divided among threads, and in whatever order members are
given. The mean is computed in the buffer of the result: beside it a merge needs one block.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from diloco.core.fragments import Fragment
from diloco.core.merge.codec import Codec, CodecError, is_finite, require_flat
from diloco.core.merge.outer_optimizer import nesterov_step
from diloco.core.merge.outliers import (
    LARGEST_NORM,
    NOT_FINITE,
    TOO_LONG,
    MeasuredMember,
    UsualSize,
    Verdict,
    compare,
    compare_alone,
)
from diloco.core.merge.radial import RadialMean
from diloco.core.merge.spans import Span, plain_spans, radial_spans, spans_within
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
        self.verdict = verdict or Verdict({}, {})
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
    usual: UsualSize | None = None
    """Usual size of its learner's contributions to this fragment; None: not known."""


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
    """Members that a bounded merge left out."""


def merge_fragment(  # noqa: PLR0913 - the interface to the syncer: keywords, each with its own meaning
    fragment: Fragment,
    contributions: Sequence[Contribution],
    *,
    codec: Codec,
    method: Literal["RDA", "Mean"],
    parameters: Tensor,
    momentum: Tensor,
    outer: OuterOptimizer,
    into: MergeTarget,
    run: BlockRunner = in_this_thread,
    bounded: bool = False,
) -> MergeStatistics:
    """Merge the contributions and step the outer optimizer; the new parameters and momentum go to ``into``.

    All tensors are flat f32 of ``fragment.numel`` elements in host memory. With one member, the merged outer gradient
    is its own, to the bit. ``run`` passes the blocks to threads, and changes no bit. With ``bounded``, members that are
    not finite, or too large to be credible (`outliers`), are left out and the others' weights are normalized to sum to
    one; if no member is left out, no bit changes. Without ``bounded``, one such member makes the merge fail, or
    distorts it.

    Raises:
        MergeError: no contribution, two of one learner, weights that do not sum to one, a tensor or payload of a wrong
            size, a contribution that decodes to something that is not finite, a mean that overflows, or no member left.
    """
    merge = FragmentMerge(fragment, tuple(contributions), codec, method, parameters, momentum, outer, into, bounded)
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
    method: Literal["RDA", "Mean"]
    parameters: Tensor
    momentum: Tensor
    outer: OuterOptimizer
    into: MergeTarget
    bounded: bool
    _verdict: Verdict = field(init=False)
    _measured: list[Span] = field(init=False)
    """The tensors, with the squares of all members; none if members are not compared."""
    _spans: list[Span] = field(init=False)

    def __post_init__(self) -> None:
        _check(self)
        self._verdict = Verdict({}, {})
        members = [member for member in self.contributions if member.weight > 0.0]
        self.contributions = tuple(sorted(members, key=lambda member: member.learner))
        self._measured = []
        if len(members) > 1 and (self.bounded or self.method == "RDA"):
            for slot in self.fragment.slots:
                radial = RadialMean(self._weights) if self.bounded or not slot.tensor.embedding else None
                stop = slot.offset + slot.tensor.numel
                self._measured.append(Span(slot.tensor.name, slot.offset, stop, radial))

    @property
    def blocks(self) -> range:
        """All blocks of the fragment."""
        return range(-(-self.fragment.numel // BLOCK))

    def measure(self, blocks: Iterable[int]) -> None:
        """First pass: the members' norms, if directions are averaged or members compared.

        Raises:
            MergeError: a contribution is not finite or too long, in a merge that is not bounded.
        """
        if not self._measured:
            return
        scratch = self._scratch()
        for block in blocks:
            touched = self._parts(self._measured, block)
            parts = [(span.radial, start, stop) for span, start, stop in touched if span.radial]
            for index, member in enumerate(self.contributions if parts else ()):
                values = self._decode(member, block, scratch)
                for radial, start, stop in parts:
                    square = _sum_of_squares(values[start:stop])
                    if not self.bounded and _too_long(square):
                        raise self._fault(block, scratch)
                    radial.squares[index].append(square)

    def choose(self) -> None:
        """After the first pass: decide which members are left out, and so how the others are combined.

        Raises:
            MergeError: no member is left.
        """
        members, kept = self.contributions, list(range(len(self.contributions)))
        if self.bounded:
            self._verdict = self._compare()
            kept = [index for index, member in enumerate(members) if member.learner not in self._verdict.left_out]
            if not kept:
                raise MergeError("no outer gradient can be merged", self._verdict)
        if len(kept) < len(members):
            total = math.fsum(members[index].weight for index in kept)
            self.contributions = tuple(replace(members[index], weight=members[index].weight / total) for index in kept)
        by_direction = self.method == "RDA" and len(kept) > 1
        self._spans = radial_spans(self.fragment, self._weights) if by_direction else plain_spans(self.fragment)
        measured = {span.start: span.radial for span in self._measured if span.radial}
        for span in self._spans:
            if span.radial:
                span.radial.squares = tuple(measured[span.start].squares[index] for index in kept)

    def _compare(self) -> Verdict:
        """Leave out members that are not finite or too long, and compare the rest with each other."""
        out: dict[str, str] = {}
        measured: list[MeasuredMember] = []
        for index, member in enumerate(self.contributions):
            squares = tuple(math.fsum(span.radial.squares[index]) for span in self._measured if span.radial)
            total = sum(squares)
            if _too_long(total):
                out[member.learner] = TOO_LONG if math.isfinite(total) else NOT_FINITE
            else:
                measured.append(MeasuredMember(member.learner, member.steps, squares, member.usual))
        if len(measured) < 2:
            return Verdict(out, {})
        verdict = compare(measured, [(span.name, span.numel) for span in self._measured], self._parameters_size)
        return Verdict({**out, **verdict.left_out}, verdict.sizes, verdict.in_company)

    def look_back(self) -> None:
        """After the second pass: compare the single member of a bounded merge with its past.

        Raises:
            MergeError: it is too large.
        """
        if not self.bounded or len(self.contributions) > 1:
            return
        (member,), (span,) = self.contributions, self._spans
        measured = MeasuredMember(member.learner, member.steps, (math.fsum(span.squares),), member.usual)
        found = compare_alone(measured, self.fragment.numel, self._parameters_size)
        self._verdict = Verdict({**self._verdict.left_out, **found.left_out}, found.sizes)
        if found.left_out:
            raise MergeError(f"the outer gradient of {member.learner}: {found.left_out[member.learner]}", self._verdict)

    def combine(self, blocks: Iterable[int]) -> None:
        """Second pass: the weighted means, into ``into.parameters``; mean directions not yet of their final length.

        Raises:
            MergeError: a contribution, or the mean of them, is not finite.
        """
        coefficients = {
            span.start: span.radial.coefficients() if span.radial else self._weights for span in self._spans
        }
        scratch = self._scratch()
        for block in blocks:
            mean = self.into.parameters[self._within(block)]
            touched = self._parts(self._spans, block)
            parts = [(span, coefficients[span.start], start, stop) for span, start, stop in touched]
            for index, member in enumerate(self.contributions):
                values = self._decode(member, block, scratch)
                for _, factors, start, stop in parts:
                    if index == 0:
                        torch.mul(values[start:stop], factors[index], out=mean[start:stop])
                    else:
                        mean[start:stop].add_(values[start:stop], alpha=factors[index])
            for span, _, start, stop in parts:
                square = _sum_of_squares(mean[start:stop])
                if _too_long(square):
                    raise self._fault(block, scratch)
                span.squares.append(square)

    def apply(self, blocks: Iterable[int]) -> None:
        """Third pass: scale mean directions to their length, and make the outer optimizer's step."""
        lengths = {span.start: span.length for span in self._spans if span.radial}
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
        by_direction = [span for span in self._spans if span.radial]
        agreed = math.fsum(span.agreement * span.numel for span in by_direction)
        return MergeStatistics(
            gradient_norm=math.sqrt(math.fsum(math.fsum(span.squares) * span.length**2 for span in self._spans)),
            agreement=agreed / sum(span.numel for span in by_direction) if by_direction else 1.0,
            cancelled=tuple(span.name for span in by_direction if span.cancelled),
            verdict=self._verdict,
        )

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
        return MergeError(text, Verdict(out, {}))


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
