"""Merges of small fragments, with defaults for everything that a test does not set."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diloco.core.fragments import Fragment, TensorSpec, partition
from diloco.core.merge.codec import Codec
from diloco.core.merge.codecs import PlainCodec, codec_named
from diloco.core.merge.fragment_merge import (
    BlockRunner,
    Contribution,
    MergeStatistics,
    MergeTarget,
    Pass,
    in_this_thread,
    merge_fragment,
)
from diloco.core.merge.member_sizes import NO_PAST, UsualSize
from diloco.core.merge.rules import RULES, rule_named
from diloco.core.sizes import ENCODINGS, Encoding
from diloco.spec.sync import MergeName, OuterOptimizer


@dataclass(frozen=True)
class WatchedCodec(PlainCodec):
    """BF16, which keeps what it encodes and the buffers that it decodes into."""

    encoding: Encoding = ENCODINGS["BF16"]
    dtype: torch.dtype = torch.bfloat16
    encoded: list[Tensor] = field(default_factory=list)
    buffers: list[Tensor] = field(default_factory=list)

    def encode_into(self, values: Tensor, payload: Tensor, start: int, decoded: Tensor) -> None:
        self.encoded.append(values)
        super().encode_into(values, payload, start, decoded)

    def decode(self, payload: Tensor, start: int, scratch: Tensor) -> Tensor:
        self.buffers.append(scratch)
        return super().decode(payload, start, scratch)


METHODS: list[MergeName] = [rule.name for rule in RULES]
PLAIN_STEP = OuterOptimizer(learning_rate=1.0, momentum=0.0)
"""Parameters minus the merged outer gradient."""


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Normally distributed values."""
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def backwards(one_pass: Pass, blocks: Iterable[int]) -> None:
    """Passes over the blocks in the opposite order, one at a time."""
    for block in reversed(list(blocks)):
        one_pass([block])


def fragment_of(*shapes: tuple[int, ...], embeddings: Sequence[int] = ()) -> Fragment:
    """A fragment of tensors t0, t1, ... of these shapes; ``embeddings``: which of them are embeddings."""
    tensors = [TensorSpec(f"t{index}", shape, index in embeddings) for index, shape in enumerate(shapes)]
    return partition(tensors, 1).fragments[0]


def contributions_of(
    deltas: Mapping[str, Tensor], weights: Sequence[float] = (), codec: str = "None"
) -> list[Contribution]:
    """One contribution for each learner; without ``weights`` all have the same weight."""
    encode = codec_named(codec).encode
    shares = weights or [1.0 / len(deltas)] * len(deltas)
    return [
        Contribution(name, share, encode(delta)) for (name, delta), share in zip(deltas.items(), shares, strict=True)
    ]


@dataclass(frozen=True)
class Rule:
    """How to merge."""

    method: MergeName = "RDA"
    codec: str = "None"
    outer: OuterOptimizer = PLAIN_STEP
    run: BlockRunner = in_this_thread
    bounded: bool = False
    usual: UsualSize = NO_PAST
    """Of the fragment, if the merge is bounded."""


def merge(
    fragment: Fragment,
    contributions: Sequence[Contribution],
    rule: Rule,
    *,
    codec: Codec | None = None,
    parameters: Tensor | None = None,
    momentum: Tensor | None = None,
    into: MergeTarget | None = None,
) -> tuple[MergeTarget, MergeStatistics]:
    """A merge; by default into buffers of its own, and from zeros."""
    zeros = torch.zeros(fragment.numel)
    into = into or MergeTarget(torch.empty(fragment.numel), torch.empty(fragment.numel))
    statistics = merge_fragment(
        fragment,
        contributions,
        codec=codec or codec_named(rule.codec),
        rule=rule_named(rule.method),
        parameters=zeros if parameters is None else parameters,
        momentum=zeros if momentum is None else momentum,
        outer=rule.outer,
        into=into,
        run=rule.run,
        usual=rule.usual if rule.bounded else None,
    )
    return into, statistics


def merge_into_zero(
    fragment: Fragment, contributions: Sequence[Contribution], rule: Rule | None = None
) -> tuple[Tensor, MergeStatistics]:
    """The merged outer gradient itself, by a plain step from zero parameters."""
    made, statistics = merge(fragment, contributions, rule or Rule())
    return -made.parameters, statistics
