"""Computes a merge that the engine ordered, for a syncer and for a replay of its tape.

Call ``prepare`` on the event loop and ``run`` in a worker thread.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from diloco.core.actions import Merge
from diloco.core.codec import codec_named
from diloco.core.downlink import Update, downlink_codec, encode_update
from diloco.core.events import LeftOut
from diloco.core.fragments import Fragment, Layout
from diloco.core.merge import BlockRunner, Contribution, MergeError, MergeTarget, in_this_thread, merge_fragment
from diloco.core.options import CURRENT_RULES, Rules
from diloco.core.outliers import UsualSizes
from diloco.core.proof import proof_of
from diloco.spec.sync import OuterOptimizer, SyncSpec
from diloco.syncer.peers.inbox import PushKey
from diloco.syncer.store import EncodedUpdate, FragmentStore, NextVersion, bytes_of, digest_of

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
    target: NextVersion


@dataclass(frozen=True, slots=True)
class MergeResult:
    """A computed merge that is not in the store yet."""

    fragment: int
    version: int
    made: NextVersion
    digest: bytes
    """XXH3-128 of the new parameters."""
    seconds: float
    problem: str
    """Why the fragment is unchanged; empty if it was merged."""
    update: EncodedUpdate | None = None
    """Update from the version before; None: the new version is sent whole."""
    not_encoded: str = ""
    """Why there is no update though the job encodes them; empty if there is one, or no merge."""
    left_out: tuple[LeftOut, ...] = ()
    """Members that were left out of the merge, by learner."""
    proof: str = ""
    """`core.proof` of the new parameters."""


class Merging:
    """The merges of one job."""

    def __init__(
        self,
        layout: Layout,
        sync: SyncSpec,
        outer: OuterOptimizer,
        run_blocks: BlockRunner = in_this_thread,
        *,
        rules: Rules = CURRENT_RULES,
    ) -> None:
        """``rules``: those that decide on the merges; under the earlier ones, one member could spoil a merge."""
        self._bounded = rules >= Rules.GUARDED
        self._usual = UsualSizes(apart=rules >= Rules.APART)
        self._layout = layout
        self._sync = sync
        self._outer = outer
        self._codec = codec_named(sync.compression)
        self._downlink = downlink_codec(sync.downlink)
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
            contribution = Contribution(
                member.learner,
                member.weight,
                payload_of(key),
                steps=member.steps,
                usual=self._usual.of(member.learner, order.fragment),
            )
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
            store.target(order.fragment),
        )

    def run(self, prepared: PreparedMerge) -> MergeResult:
        """Merge. If the contributions cannot be merged, the fragment is unchanged under its new version."""
        began = time.perf_counter()
        made, problem, not_encoded = prepared.target, "", ""
        update: EncodedUpdate | None = None
        try:
            verdict = merge_fragment(
                prepared.fragment,
                [self._anchored(contribution, base, prepared.parameters) for contribution, base in prepared.members],
                codec=self._codec,
                method=self._sync.merge,
                parameters=prepared.parameters,
                momentum=prepared.momentum,
                outer=self._outer,
                into=made.merge,
                run=self._run_blocks,
                bounded=self._bounded,
            ).verdict
        except MergeError as error:
            problem, verdict = str(error), error.verdict
            made = NextVersion(MergeTarget(prepared.parameters, prepared.momentum), prepared.residual)
        else:
            update, not_encoded = self._encoded(prepared)
        self._usual.remember(prepared.fragment.index, verdict)
        proof = proof_of(bytes_of(made.merge.parameters), self._run_blocks)
        return MergeResult(
            prepared.fragment.index,
            prepared.version,
            made,
            digest=digest_of(made.merge.parameters),
            seconds=time.perf_counter() - began,
            problem=problem,
            update=update,
            not_encoded=not_encoded,
            left_out=tuple(
                LeftOut(learner, reason, learner in verdict.broken)
                for learner, reason in sorted(verdict.left_out.items())
            ),
            proof=proof,
        )

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

    def _anchored(self, contribution: Contribution, base: torch.Tensor | None, current: torch.Tensor) -> Contribution:
        """For ``sync.anchor: Current``: measure from the current fragment, not from the version received."""
        if base is None:
            return contribution
        return replace(contribution, drift=current - base)
