"""Error feedback: what an encoding lost is added to the next outer gradient, so that nothing is lost for good.

It keeps no state. The sender decides when a residual counts: once the payload has been merged, not before.
"""

import torch
from torch import Tensor

from diloco.core.buffers import recycled
from diloco.core.merge.codec import Codec, require_flat
from diloco.core.sizes import BLOCK


def encode_with_feedback(codec: Codec, values: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    """Encode ``values + residual``; returns the payload and what the encoding lost.

    Over all encodings of a fragment, the sum of the decoded values plus the last residual is the sum of the given
    values. Each time ``decoded + new_residual`` is ``values + residual`` exactly: a value and its nearest neighbour
    among the codec's values are so close that their difference is an f32 itself (Sterbenz).

    Args:
        codec: how to encode.
        values: f32, flat; not changed.
        residual: f32 of the same length, from the last encoding that was merged; None where there is none yet.

    Returns:
        The payload (uint8, flat) and the new residual (f32, as long as ``values``).

    Raises:
        CodecError: a value is not finite, or too large for the codec.
        ValueError: ``residual`` has another length.
    """
    require_flat(values)
    if residual is not None:
        require_flat(residual)
        if residual.numel() != values.numel():
            raise ValueError(f"the residual has {residual.numel()} elements, the outer gradient {values.numel()}")
    payload, lost = recycled(codec.payload_bytes(values.numel()), torch.uint8), recycled(values.numel(), torch.float32)
    scratch = torch.empty(min(BLOCK, values.numel()))
    for start in range(0, values.numel(), BLOCK):
        within = slice(start, start + BLOCK)
        corrected = lost[within]  # overwritten with what is lost of it
        if residual is None:
            corrected.copy_(values[within])
        else:
            torch.add(values[within], residual[within], out=corrected)
        decoded = scratch[: corrected.numel()]
        codec.encode_into(corrected, payload, start, decoded)
        corrected.sub_(decoded)
    return payload, lost
