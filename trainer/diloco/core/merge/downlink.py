"""Encodes the update from one version of a fragment to the next, with error feedback, for the way to the learners.

A learner that holds the version before is sent the encoded update instead of the whole fragment. So that every learner
has the same bits, the new version is *defined* as the version before plus what the encoding decodes to; what the
encoding lost stays at the syncer, in f32, and is added to the next update. Both sides compute the sum with the same
operation on the same blocks (``sizes.BLOCK``), so neither cutting nor threads change a bit.

The residual is what the merge made less what the learners got, ``(merged - new) + residual``, not merely what the
encoding lost, ``corrected - decoded``: it also keeps what f32 rounds away from the sum ``base + decoded``, which would
otherwise add up over the merges.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diloco.core.buffers import recycled
from diloco.core.merge.codec import Codec, CodecError, require_flat
from diloco.core.merge.codecs import codec_of
from diloco.core.merge.fragment_merge import BlockRunner, in_this_thread
from diloco.core.sizes import BLOCK, downlink_encoding
from diloco.spec.sync import SyncSpec


def downlink_codec(sync: SyncSpec) -> Codec | None:
    """The codec of a job's merged fragments; None if they are sent whole."""
    return None if sync.downlink == "F32" else codec_of(downlink_encoding(sync.downlink, sync.density))


@dataclass(frozen=True, slots=True)
class Update:
    """Input and output of an update: flat f32 tensors of one length in host memory."""

    base: Tensor
    """The version before; not changed."""
    merged: Tensor
    """The merge's result; overwritten with the new version."""
    residual: Tensor
    """What earlier updates left over; not changed unless it is ``rest`` itself."""
    rest: Tensor
    """Overwritten with what is left over now."""

    def __post_init__(self) -> None:
        """Check the tensors.

        Raises:
            CodecError: a tensor is not flat f32 in host memory.
            ValueError: they are not of one length.
        """
        tensors = (self.base, self.merged, self.residual, self.rest)
        for tensor in tensors:
            require_flat(tensor)
        if len({tensor.numel() for tensor in tensors}) != 1:
            raise ValueError(f"an update's tensors have {', '.join(str(t.numel()) for t in tensors)} elements")

    def block(self, index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One block of each, in the order of the fields."""
        within = slice(index * BLOCK, (index + 1) * BLOCK)
        return self.base[within], self.merged[within], self.residual[within], self.rest[within]


def encode_update(codec: Codec, update: Update, run: BlockRunner = in_this_thread) -> tuple[Tensor | None, str]:
    """Encode the update from ``base`` to ``merged`` and turn ``merged`` into what it decodes to.

    Beside the tensors it needs the payload and two blocks per thread. ``run`` passes the blocks to threads, and changes
    no bit.

    Returns:
        The payload (uint8, flat), and an empty text. Or None and why there is no payload: the update has values that
        are not finite or too large for the codec. The new version is then ``merged + residual`` in f32, and ``rest`` is
        0.
    """
    encoder = _Encoder(codec, update)
    run(encoder.encode, encoder.blocks)
    if not encoder.failed:
        return encoder.payload, ""
    run(encoder.give_up, encoder.blocks)
    failed, blocks = len(encoder.failed), len(encoder.blocks)
    return None, f"{failed} of {blocks} blocks hold values that are not finite, or too large for {codec.name}"


def apply_update(codec: Codec, payload: Tensor, base: Tensor, out: Tensor) -> None:
    """Write ``base`` plus what ``payload`` decodes to into ``out``: the same bits as in ``encode_update``.

    ``base`` and ``out`` are flat f32 of one length; ``payload`` (uint8, flat) has the length that the codec gives.

    Raises:
        CodecError: ``payload`` has another length.
    """
    for start in range(0, base.numel(), BLOCK):
        within = slice(start, start + BLOCK)
        new = out[within]
        codec.decode_into(payload, start, new)
        torch.add(base[within], new, out=new)


@dataclass
class _Encoder:
    """An update that is being encoded.

    A block that fails is left as it is, and the others go on: in every block ``merged + rest`` is then the merge's
    result plus what was left over, whatever the order of the threads.
    """

    codec: Codec
    update: Update
    payload: Tensor = field(init=False)
    failed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.payload = recycled(self.codec.payload_bytes(self.update.base.numel()), torch.uint8)

    @property
    def blocks(self) -> range:
        return range(-(-self.update.base.numel() // BLOCK))

    def encode(self, blocks: Iterable[int]) -> None:
        scratch = torch.empty(2, min(BLOCK, self.update.base.numel()))
        for block in blocks:
            base, merged, residual, rest = self.update.block(block)
            corrected, new = scratch[:, : base.numel()]
            torch.sub(merged, base, out=corrected).add_(residual)
            try:
                self.codec.encode_into(corrected, self.payload, block * BLOCK, new)
            except CodecError:
                self.failed.add(block)
                rest.copy_(residual)
                continue
            torch.add(base, new, out=new)
            torch.sub(merged, new, out=merged)  # exact where the two are within a factor of 2 (Sterbenz)
            torch.add(merged, residual, out=rest)
            merged.copy_(new)

    def give_up(self, blocks: Iterable[int]) -> None:
        """Without a payload: add everything that was left over to the new version."""
        for block in blocks:
            _, merged, _, rest = self.update.block(block)
            merged.add_(rest)
            rest.zero_()
