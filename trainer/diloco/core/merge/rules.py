"""Merge rules: how the members' outer gradients of a fragment become one.

A rule decides per tensor, from the members' norms, and then combines values block by block. `fragment_merge` does
everything else: it reads payloads, leaves members out, clips, normalizes weights, steps the outer optimizer. A single
member is never passed to a rule: its outer gradient is the merged one. `tests/unit/core/merge/test_rules.py` is what
every rule must pass.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from diloco.core.fragments import Slot
from diloco.core.merge.radial import mean_norm, radial_factors
from diloco.core.merge.spans import Span, add_span
from diloco.spec.sync import MergeName

Part = tuple[Span, int, int]
"""A span, and where the part of it that lies in a block begins and ends there."""


@dataclass(frozen=True, slots=True)
class MemberTensor:
    """What a rule knows of one tensor, by member."""

    slot: Slot
    norms: tuple[float, ...]
    """L2, as the members sent them."""
    clips: tuple[float, ...]
    """Factors of at most 1 by which the members' values are clipped (`outliers`)."""


class MergeRule(Protocol):
    """Combines two or more members. Pure, and without state: blocks come in any order, from several threads."""

    @property
    def name(self) -> MergeName:
        """The rule's name in a job's ``sync.merge``."""
        ...

    def spans(self, tensors: Sequence[MemberTensor], weights: tuple[float, ...]) -> list[Span]:
        """How each tensor is combined, in order and without gaps. ``weights`` sum to one."""
        ...

    def combine(self, values: Iterable[Tensor], parts: Sequence[Part], out: Tensor) -> None:
        """Write what the members' ``values`` of one block (f32, flat) make to ``out``, as long as they.

        ``values`` has them in the order of ``Span.factors``; each holds only until the next one is taken, and is for
        reading. ``parts`` cover the block.
        """
        ...


class _WeightedSum:
    """Adds up the members' values with the factors of their spans."""

    def combine(self, values: Iterable[Tensor], parts: Sequence[Part], out: Tensor) -> None:
        """See ``MergeRule``."""
        for index, block in enumerate(values):
            for span, start, stop in parts:
                if index == 0:
                    torch.mul(block[start:stop], span.factors[index], out=out[start:stop])
                else:
                    out[start:stop].add_(block[start:stop], alpha=span.factors[index])


class WeightedMean(_WeightedSum):
    """The weighted mean of the clipped values."""

    name: MergeName = "Mean"

    def spans(self, tensors: Sequence[MemberTensor], weights: tuple[float, ...]) -> list[Span]:
        """See ``MergeRule``. Tensors beside each other with the same factors are one span."""
        spans: list[Span] = []
        for one in tensors:
            add_span(spans, _mean_span(one, weights))
        return spans


class RadialDirectional(_WeightedSum):
    """RDA (`radial`) of each tensor; embeddings by the weighted mean, as in the paper."""

    name: MergeName = "RDA"

    def spans(self, tensors: Sequence[MemberTensor], weights: tuple[float, ...]) -> list[Span]:
        """See ``MergeRule``."""
        spans: list[Span] = []
        for one in tensors:
            if one.slot.tensor.embedding:
                add_span(spans, _mean_span(one, weights))
                continue
            clipped = [norm * clip for norm, clip in zip(one.norms, one.clips, strict=True)]
            norm = mean_norm(weights, clipped)
            spans.append(_span(one.slot, radial_factors(weights, one.norms, norm), norm))
        return spans


def _mean_span(one: MemberTensor, weights: tuple[float, ...]) -> Span:
    return _span(one.slot, tuple(weight * clip for weight, clip in zip(weights, one.clips, strict=True)))


def _span(slot: Slot, factors: tuple[float, ...], norm: float | None = None) -> Span:
    return Span(slot.tensor.name, slot.offset, slot.offset + slot.tensor.numel, factors, norm)


MEAN = WeightedMean()
RULES: tuple[MergeRule, ...] = (RadialDirectional(), MEAN)
"""One for each `MergeName`; the first is the default."""


def rule_named(name: MergeName) -> MergeRule:
    """The rule that a job's ``sync.merge`` names."""
    return next(rule for rule in RULES if rule.name == name)
