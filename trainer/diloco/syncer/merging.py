"""Computes a merge that the engine ordered, for a syncer and for a replay of its tape.

Call ``prepare`` on the event loop and ``run`` in a worker thread.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from diloco.core.engine.actions import Merge
from diloco.core.engine.events import Cosine, LeftOut, Merged
from diloco.core.fragments import Fragment, Layout
from diloco.core.merge.codecs import uplink_codec
from diloco.core.merge.downlink import Update, downlink_codec, encode_update
from diloco.core.merge.fragment_merge import (
    BlockRunner,
    Contribution,
    MergeError,
    MergeTarget,
    in_this_thread,
    merge_fragment,
)
from diloco.core.merge.member_sizes import UsualSize
from diloco.core.merge.rules import rule_named
from diloco.core.merge.running_mean import running_mean
from diloco.spec.sync import OuterOptimizer, SyncSpec
from diloco.syncer.store import EncodedUpdate, FragmentStore, NextVersion, digest_of
from diloco.wire.messages import PushKey

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparedMerge:
    """A merge's inputs and where its result goes; nothing of it changes while it runs."""

    fragment: Fragment
    version: int
    members: tuple[tuple[Contribution, torch.Tensor | None], ...]
    """Each with the parameters its outer gradient must be re-anchored from; None: it is used as it is."""
    current_version: int
    parameters: torch.Tensor
    momentum: torch.Tensor
    residual: torch.Tensor | None
    """What earlier updates have left over; None: updates are not encoded."""
    usual: UsualSize
    """Of the fragment's outer gradients."""
    mean: torch.Tensor | None
    """Of the fragment's last versions; None: there is none."""
    averaged: int
    """See `Merge.averaged`."""
    target: NextVersion


@dataclass(frozen=True, slots=True)
class MergeResult:
    """A computed merge that is not in the store yet."""

    event: Merged
    """What the engine is told of it."""
    made: NextVersion
    digest: bytes
    """XXH3-128 of the new parameters."""
    problem: str
    """Why the fragment is unchanged; empty if it was merged."""
    update: EncodedUpdate | None = None
    """Update from the version before; None: the new version is sent whole."""
    gradient_norm: float = 0.0
    """L2 norm of the merged outer gradient."""
    agreement: float = 0.0
    """Of the members' directions (``MergeStatistics``)."""
    clipped: int = 0
    """Number of members that were clipped."""
    not_encoded: str = ""
    """Why there is no update though the job encodes them; empty if there is one, or no merge."""


class Merging:
    """The merges of one job."""

    def __init__(
        self,
        layout: Layout,
        sync: SyncSpec,
        outer: OuterOptimizer,
        run_blocks: BlockRunner = in_this_thread,
    ) -> None:
        self._layout = layout
        self._sync = sync
        self._outer = outer
        self._codec = uplink_codec(sync)
        self._rule = rule_named(sync.merge)
        self._downlink = downlink_codec(sync)
        self._run_blocks = run_blocks

    def prepare(
        self, order: Merge, store: FragmentStore, payload_of: Callable[[PushKey], torch.Tensor]
    ) -> PreparedMerge:
        """Gather a merge's inputs.

        Raises:
            KeyError: ``payload_of`` does not have a member's payload.
        """
        fragment = self._layout.fragments[order.fragment]
        current = store.current(order.fragment)
        members: list[tuple[Contribution, torch.Tensor | None]] = []
        for member in order.members:
            key = PushKey(member.learner, member.incarnation, order.fragment, order.version, member.attempt)
            contribution = Contribution(member.learner, member.weight, payload_of(key), steps=member.steps)
            moved = self._sync.anchor == "Current" and member.base_version != current.version
            base = store.base(order.fragment, member.base_version) if moved else None
            members.append((contribution, base))
        return PreparedMerge(
            fragment,
            order.version,
            tuple(members),
            current.version,
            current.parameters,
            store.momentum(order.fragment),
            store.residual(order.fragment),
            store.usual(order.fragment),
            store.mean(order.fragment),
            order.averaged,
            store.target(order.fragment),
        )

    def run(self, prepared: PreparedMerge) -> MergeResult:
        """Merge. If the contributions cannot be merged, the fragment is unchanged under its new version."""
        if not prepared.members:
            return _mean_as_version(prepared)
        began = time.perf_counter()
        made, problem, not_encoded = prepared.target, "", ""
        update: EncodedUpdate | None = None
        norm = agreement = 0.0
        cosines: Mapping[str, float] = {}
        try:
            found = merge_fragment(
                prepared.fragment,
                [
                    # For ``sync.anchor: Current``: measured from the current fragment, not from the version received.
                    one if base is None else replace(one, drift=prepared.parameters - base)
                    for one, base in prepared.members
                ],
                codec=self._codec,
                rule=self._rule,
                parameters=prepared.parameters,
                momentum=prepared.momentum,
                outer=self._outer,
                into=made.merge,
                run=self._run_blocks,
                usual=prepared.usual,
            )
            verdict, norm, agreement, cosines = found.verdict, found.gradient_norm, found.agreement, found.cosines
        except MergeError as error:
            problem, verdict = str(error), error.verdict
            kept = MergeTarget(prepared.parameters, prepared.momentum)
            made = NextVersion(kept, prepared.residual, mean=prepared.mean)
        else:
            update, not_encoded = self._encoded(prepared)
            made = replace(made, mean=running_mean(prepared.mean, made.merge.parameters, prepared.averaged))
        made = replace(made, usual=verdict.usual)
        digest, left_out = digest_of(made.merge.parameters), sorted(verdict.left_out.items())
        event = Merged(
            prepared.fragment.index,
            prepared.version,
            digest.hex(),
            time.perf_counter() - began,
            failed=bool(problem),
            left_out=tuple(LeftOut(learner, reason, learner in verdict.broken) for learner, reason in left_out),
            cosines=tuple(Cosine(learner, round(cosine, 4)) for learner, cosine in cosines.items()),
        )
        return MergeResult(event, made, digest, problem, update, norm, agreement, len(verdict.clips), not_encoded)

    def _encoded(self, prepared: PreparedMerge) -> tuple[EncodedUpdate | None, str]:
        """The merge's result as an update, from which the new version is made; or why it cannot be encoded."""
        made = prepared.target
        if self._downlink is None or prepared.residual is None or made.rest is None:
            return None, ""
        update = Update(prepared.parameters, made.merge.parameters, prepared.residual, made.rest)
        payload, problem = encode_update(self._downlink, update, self._run_blocks)
        if payload is None:
            return None, problem
        return EncodedUpdate(prepared.current_version, self._downlink.name, payload, digest_of(payload)), ""


def _mean_as_version(prepared: PreparedMerge) -> MergeResult:
    """The mean of the fragment's last versions, which is sent whole: an encoding would lose part of it."""
    began = time.perf_counter()
    mean = prepared.mean
    assert mean is not None, "the fragment has no mean"
    digest = digest_of(mean)
    event = Merged(prepared.fragment.index, prepared.version, digest.hex(), time.perf_counter() - began)
    made = NextVersion(MergeTarget(mean, prepared.momentum), prepared.residual, prepared.usual)
    return MergeResult(event, made, digest, "")
