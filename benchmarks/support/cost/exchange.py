"""One exchange of a fragment by its parts, for the benchmark `cost`."""

import json
from typing import Any

import torch
from torch import nn

from diloco.core.buffers import bytes_of, recycled
from diloco.core.engine.actions import Member, Merge
from diloco.core.merge.codecs import uplink_codec
from diloco.core.merge.downlink import apply_update, downlink_codec
from diloco.core.merge.feedback import encode_with_feedback
from diloco.learner.data.opening import open_data
from diloco.learner.training.trainer import InnerTrainer
from diloco.model.build import build_model
from diloco.model.fragments import layout_of
from diloco.spec import parse_job
from diloco.spec.outer_choice import DILOCO
from diloco.syncer.block_threads import BlockThreads
from diloco.syncer.merging import Merging
from diloco.syncer.store import FragmentStore
from support.job import manifest
from support.links.ways import Wire

LEARNERS = ("here/pool/0", "here/pool/1")
FRAGMENTS = 24
BYTES_64_MIB = 64 << 20
CODECS = {
    "BF16 up, F32 down": ("BF16", "F32"),
    "Int4 up, Int8 down": ("Int4", "Int8"),
    "TopK both ways": ("TopK", "TopK"),
}
TRAINING = {"tokens": 10**12, "sequenceLength": 128, "batchSize": 16}
"""Of nano, as in ``stall`` and ``overhead``."""


def job(preset: str, codecs: str) -> dict[str, Any]:
    """The manifest; a 64 MiB fragment is the only one of its model."""
    up, down = CODECS[codecs]
    count = FRAGMENTS if preset == "nano" else 1
    sync = {"fragments": count, "interval": FRAGMENTS, "quorum": len(LEARNERS), "compression": up, "downlink": down}
    small = {"sequenceLength": 8, "batchSize": 1}
    model: dict[str, Any] = {"builtin": {"preset": preset}}
    if preset != "nano":
        arguments = {"blocks": 1, "numel": BYTES_64_MIB // 4, "vocabulary": 257}
        model = {"entrypoint": "support.capacity.large_model:make", "arguments": arguments}
    training = TRAINING if preset == "nano" else TRAINING | small
    return manifest("cost", {"here": len(LEARNERS)}, training=training, sync=sync, model=model)


def trainer_of(preset: str, codecs: str, learner: str = LEARNERS[0]) -> tuple[InnerTrainer, nn.Module]:
    """A learner's trainer, and what it trains."""
    torch.set_num_threads(1)
    spec = parse_job(json.dumps(job(preset, codecs))).spec
    module = build_model(spec)
    layout = layout_of(module, spec.sync.fragments)
    return InnerTrainer(spec, module, layout, open_data(spec, learner), torch.device("cpu")), module


class Exchange:
    """A learner and a syncer in this process, with the wire to another one between them; one method for each part."""

    PARTS = ("capture", "encode", "push", "merge", "release", "pull", "apply")

    def __init__(self, preset: str, codecs: str, wire: Wire) -> None:
        self._trainer, self._module = trainer_of(preset, codecs)
        sync, layout = parse_job(json.dumps(job(preset, codecs))).spec.sync, self._trainer.layout
        self._wire, self._codec, self._down = wire, uplink_codec(sync), downlink_codec(sync)
        self._merging = Merging(layout, sync, DILOCO, BlockThreads(1))
        self._store = FragmentStore(layout, residuals=self._down is not None)
        self._residual = None if self._down is None else torch.zeros(layout.fragments[0].numel)
        for fragment in layout.fragments:
            self._store.put(fragment.index, 0, self._trainer.capture(fragment.index).delta.neg())
        self._held = self._store.current(0).parameters.clone()
        self._trainer.apply(0, 0, self._held)
        self._version = 0
        self._changes = [1e-3 * torch.randn_like(values) for values in self._module.parameters()]

    @property
    def fragment_bytes(self) -> int:
        """Of the f32 values."""
        return self._held.nbytes

    def train(self) -> None:
        """As far as an exchange can tell: not measured."""
        with torch.no_grad():
            for values, change in zip(self._module.parameters(), self._changes, strict=True):
                values.add_(change)

    def capture(self) -> None:
        """Between two steps of the learner."""
        self._captured = self._trainer.capture(0)

    def encode(self) -> None:
        """With error feedback where the way back is encoded."""
        if self._residual is None:
            self._sent = self._codec.encode(self._captured.delta)
        else:
            self._sent, self._residual = encode_with_feedback(self._codec, self._captured.delta, self._residual)

    def push(self) -> None:
        """To the other process."""
        self._wire.push(bytes_of(self._sent))

    def merge(self) -> None:
        """Of two members, with all that is made of the new version before it is released."""
        self._version += 1
        members = tuple(Member(name, 1, 1, self._version - 1, 1, 1, 0.5, "") for name in LEARNERS)
        order = Merge(0, self._version, members, "")
        self._result = self._merging.run(self._merging.prepare(order, self._store, lambda _: self._sent))

    def release(self) -> None:
        """Make it the current version."""
        made = self._result
        self._store.commit(0, self._version, made.made, made.digest, made.update)

    def pull(self) -> None:
        """From the other process: as many bytes."""
        current = self._store.current(0)
        self._received = recycled(len((current.update or current).view), torch.uint8)
        self._wire.pull(bytes_of(self._received))

    def apply(self) -> None:
        """Make the learner's fragment of what came, and swap it in."""
        current = self._store.current(0)
        if self._down is None or current.update is None:
            values = self._received.view(torch.float32).zero_()
        else:
            values = self._trainer.buffer(0)
            apply_update(self._down, current.update.payload, self._held, values)
        self._trainer.apply(0, self._version, values)
        self._held = values
