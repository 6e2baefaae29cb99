"""Merges of small fragments, with defaults for everything that a test does not set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from diloco.core.codec import codec_named
from diloco.core.fragments import Fragment, TensorSpec, partition
from diloco.core.merge import BlockRunner, Contribution, MergeStatistics, MergeTarget, in_this_thread, merge_fragment
from diloco.core.outliers import UsualSize
from diloco.spec.sync import OuterOptimizer

PLAIN_STEP = OuterOptimizer(learning_rate=1.0, momentum=0.0)
"""Parameters minus the merged outer gradient."""


def fragment_of(*shapes: tuple[int, ...], embeddings: Sequence[int] = ()) -> Fragment:
    """A fragment of tensors t0, t1, ... of these shapes; ``embeddings``: which of them are embeddings."""
    tensors = [TensorSpec(f"t{index}", shape, index in embeddings) for index, shape in enumerate(shapes)]
    return partition(tensors, 1).fragments[0]


def contributions_of(
    deltas: Mapping[str, Tensor], weights: Sequence[float] = (), codec: str = "None", usual: UsualSize | None = None
) -> list[Contribution]:
    """One contribution for each learner; without ``weights`` all have the same weight."""
    encode = codec_named(codec).encode
    shares = weights or [1.0 / len(deltas)] * len(deltas)
    return [
        Contribution(name, share, encode(delta), usual=usual)
        for (name, delta), share in zip(deltas.items(), shares, strict=True)
    ]


@dataclass(frozen=True)
class Rule:
    """How to merge."""

    method: Literal["RDA", "Mean"] = "RDA"
    codec: str = "None"
    outer: OuterOptimizer = PLAIN_STEP
    run: BlockRunner = in_this_thread
    bounded: bool = False


def merge_into_zero(
    fragment: Fragment, contributions: Sequence[Contribution], rule: Rule | None = None
) -> tuple[Tensor, MergeStatistics]:
    """The merged outer gradient itself, by a plain step from zero parameters."""
    rule = rule or Rule()
    result = torch.empty(fragment.numel)
    statistics = merge_fragment(
        fragment,
        contributions,
        codec=codec_named(rule.codec),
        method=rule.method,
        parameters=torch.zeros(fragment.numel),
        momentum=torch.zeros(fragment.numel),
        outer=rule.outer,
        into=MergeTarget(result, torch.zeros(fragment.numel)),
        run=rule.run,
        bounded=rule.bounded,
    )
    return -result, statistics
