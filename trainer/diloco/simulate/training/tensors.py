"""The work of a simulated run with real training, encoding and merging."""

from collections.abc import Mapping, Sequence

import torch
import xxhash
from torch import Tensor

from diloco.core.engine.actions import Merge
from diloco.core.engine.events import Cosine, LeftOut
from diloco.core.fragments import Layout
from diloco.core.merge.codecs import uplink_codec
from diloco.core.merge.downlink import Update, downlink_codec, encode_update
from diloco.core.merge.feedback import encode_with_feedback
from diloco.core.merge.fragment_merge import Contribution, MergeError, MergeTarget, merge_fragment
from diloco.core.merge.member_sizes import NO_PAST
from diloco.core.merge.rules import rule_named
from diloco.core.merge.running_mean import running_mean
from diloco.core.sizes import F32
from diloco.learner.data.opening import open_data, open_task
from diloco.learner.data.task import JobTask
from diloco.learner.exchange.residuals import Residual, Residuals
from diloco.learner.training.capture import Capture
from diloco.learner.training.trainer import InnerTrainer
from diloco.model.build import build_model
from diloco.model.fragments import layout_of, read_fragment
from diloco.simulate.training.work import MergeOutcome, Payload, Work
from diloco.spec import JobSpec
from diloco.spec.outer_choice import OuterChoice
from diloco.spec.sync import SyncSpec


def tensor_work(spec: JobSpec, task: JobTask | None = None) -> tuple[Layout, Work]:
    """Work with the job's own model and data. ``task``: the job's, if the caller has opened it.

    Raises:
        ModelError, DataError: the job's model or data cannot be used.
    """
    module = build_model(spec)
    layout = layout_of(module, spec.sync.fragments)
    initial = [torch.empty(fragment.numel) for fragment in layout.fragments]
    for fragment, values in zip(layout.fragments, initial, strict=True):
        read_fragment(module, fragment, values)
    opened = open_task(spec) if task is None else task

    dealt = 0

    def deal(_first: int, count: int) -> int:
        nonlocal dealt
        dealt += count
        return dealt - count

    def new_trainer(learner: str) -> InnerTrainer:
        data = open_data(spec, learner, opened)
        data.sampler.supply = deal
        return InnerTrainer(spec, build_model(spec), layout, data, torch.device("cpu"))

    def new_encoder(residuals: Mapping[int, Residual]) -> TensorEncoder:
        return TensorEncoder(spec.sync, residuals)

    return layout, Work(TensorModel(spec, layout, initial), new_trainer, new_encoder)


class TensorEncoder:
    """See `work.Encoder`."""

    def __init__(self, sync: SyncSpec, residuals: Mapping[int, Residual]) -> None:
        self._codec = uplink_codec(sync)
        feeds_back = sync.keeps_residuals
        self._feedback = Residuals(dict(residuals)) if feeds_back else None

    def encode(self, capture: Capture, version: int) -> Payload:
        if self._feedback is None:
            values = self._codec.encode(capture.delta)
        else:
            before = self._feedback.residual(capture.fragment)
            values, residual = encode_with_feedback(self._codec, capture.delta, before)
            self._feedback.encoded(capture.fragment, version, residual)
        return Payload(values.numel(), xxhash.xxh3_128_hexdigest(values.numpy().tobytes()), values)

    def outcome(self, fragment: int, version: int, *, merged: bool) -> None:
        if self._feedback is not None:
            self._feedback.outcome(fragment, version, merged=merged)

    def session_begins(self, versions: Sequence[int], counted_in: Sequence[int]) -> None:
        if self._feedback is not None:
            self._feedback.session_begins("", versions, counted_in)

    def start_over(self) -> None:
        if self._feedback is not None:
            self._feedback.forget()

    def residuals(self) -> Mapping[int, Residual]:
        return {} if self._feedback is None else self._feedback.snapshot()


class TensorModel:
    """See `work.GlobalModel`."""

    def __init__(self, spec: JobSpec, layout: Layout, initial: list[Tensor]) -> None:
        self._sync = sync = spec.sync
        self._outer = OuterChoice.of(spec).optimizer
        self._layout = layout
        self._codec = uplink_codec(sync)
        self.parameters = [values.clone() for values in initial]
        self._momentum = [torch.zeros_like(values) for values in initial]
        self._downlink = downlink_codec(sync)
        self._residuals = [torch.zeros_like(values) for values in initial] if self._downlink else []
        self._usual = [NO_PAST for _ in initial]
        self._means: list[Tensor | None] = [None for _ in initial]
        self._updates: dict[int, tuple[int, int]] = {}
        """Fragment -> version that its update begins with, and the update's bytes."""
        self._history: list[dict[int, Tensor]] = [{0: values} for values in self.parameters]

    def merge(self, order: Merge, payloads: Mapping[str, Payload]) -> MergeOutcome:
        index = order.fragment
        current = self.parameters[index]
        if not order.members:
            return self._mean_as_version(index)
        contributions = []
        for member in order.members:
            values = payloads[member.learner].values
            assert values is not None
            drift = None
            if self._sync.anchor == "Current" and member.base_version != order.version - 1:
                drift = current - self._history[index][member.base_version]
            contributions.append(Contribution(member.learner, member.weight, values, drift, member.steps))
        # A new buffer: pulls under way and the history keep the previous one.
        target = MergeTarget(torch.empty_like(current), self._momentum[index])
        try:
            found = merge_fragment(
                self._layout.fragments[index],
                contributions,
                codec=self._codec,
                rule=rule_named(self._sync.merge),
                parameters=current,
                momentum=self._momentum[index],
                outer=self._outer,
                into=target,
                usual=self._usual[index],
            )
            verdict, failed = found.verdict, False
            cosines = tuple(Cosine(learner, cosine) for learner, cosine in found.cosines.items())
            self._encode(index, order.version - 1, target.parameters)
            self.parameters[index] = target.parameters
            self._means[index] = running_mean(self._means[index], target.parameters, order.averaged)
        except MergeError as error:
            verdict, failed, cosines = error.verdict, True, ()
            self._updates.pop(index, None)
        self._usual[index] = verdict.usual
        history = self._history[index]
        history[order.version] = self.parameters[index]
        for old in [held for held in history if held < order.version - self._sync.max_version_lag]:
            del history[old]
        digest = _digest(self.parameters[index])
        left_out = sorted(verdict.left_out.items())
        reasons = tuple(LeftOut(learner, reason, learner in verdict.broken) for learner, reason in left_out)
        return MergeOutcome(digest, failed, reasons, cosines)

    def _mean_as_version(self, fragment: int) -> MergeOutcome:
        mean, self._means[fragment] = self._means[fragment], None
        assert mean is not None
        self.parameters[fragment] = mean
        self._updates.pop(fragment, None)
        return MergeOutcome(_digest(mean))

    def values(self, fragment: int) -> Tensor:
        return self.parameters[fragment]

    def pull_bytes(self, fragment: int, held_version: int | None) -> int:
        base_version, update_bytes = self._updates.get(fragment, (None, 0))
        if base_version is not None and base_version == held_version:
            return update_bytes
        return F32.payload_bytes(self._layout.fragments[fragment].numel)

    def _encode(self, fragment: int, base_version: int, merged: Tensor) -> None:
        """Replace a merge's result by what its update decodes to, as the syncer does."""
        self._updates.pop(fragment, None)
        if self._downlink is None:
            return
        residual = self._residuals[fragment]
        payload, _ = encode_update(self._downlink, Update(self.parameters[fragment], merged, residual, residual))
        if payload is not None:
            self._updates[fragment] = (base_version, payload.numel())


def _digest(values: Tensor) -> str:
    return xxhash.xxh3_128_hexdigest(values.numpy().tobytes())
