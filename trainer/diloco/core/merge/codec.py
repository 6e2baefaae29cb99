"""What a codec is: it encodes an outer gradient for the wire, and decodes it where it is merged.

A codec works on a flat f32 buffer that is cut on a fixed grid of ``BLOCK`` elements. A payload is its blocks' bytes in
order, and each block can be read separately, so that merging works on cache-sized pieces and a shard of a fragment is a
contiguous range of bytes.

Rounding is to nearest and not random: equal values give equal bytes. Values that are not finite are always refused:
by ``encode`` where they arise, by ``check`` when a payload comes from the network, and again by the merge.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from diloco.core.buffers import recycled
from diloco.core.sizes import BLOCK, Encoding


class CodecError(ValueError):
    """Values that cannot be encoded or a payload that cannot be decoded."""


class Codec(Protocol):
    """Turns a flat f32 buffer into bytes and back."""

    @property
    def encoding(self) -> Encoding:
        """The form of its payloads."""
        ...

    @property
    def name(self) -> str:
        """The codec's name in a job's ``sync.compression``."""
        ...

    def payload_bytes(self, numel: int) -> int:
        """Exact size of the payload of ``numel`` elements."""
        ...

    def encode(self, values: Tensor) -> Tensor:
        """The payload of ``values`` (f32, flat), as uint8 (flat, contiguous); may share memory with ``values``.

        Raises:
            CodecError: a value is not finite, or too large for the codec; or no flat f32 tensor.
        """
        ...

    def encode_into(self, values: Tensor, payload: Tensor, start: int, decoded: Tensor) -> None:
        """Write what ``encode`` makes of ``values`` to their place in ``payload``, as its elements from ``start`` on.

        ``start`` and the length of ``values``, at most ``BLOCK``, are as in ``decode_into``. ``decoded``, another
        tensor of that length, gets what ``decode_into`` would make of them.

        Raises:
            CodecError: as in ``encode`` and ``decode_into``; ``decoded`` and their place in ``payload`` are then
                undefined.
        """
        ...

    def decode_into(self, payload: Tensor, start: int, out: Tensor) -> None:
        """Write elements ``start`` to ``start + len(out)`` to ``out`` (f32, flat).

        ``start`` is a multiple of ``BLOCK``, and ``out`` ends at another one or at the last element of the payload.

        Raises:
            CodecError: ``start`` or the length of ``out`` is not on the grid or not in the payload.
        """
        ...

    def decode(self, payload: Tensor, start: int, scratch: Tensor) -> Tensor:
        """Like ``decode_into(payload, start, scratch)``, but without a copy where the payload holds plain f32.

        The result is ``scratch`` or a part of the payload, so it is only for reading.
        """
        ...

    def check(self, payload: Tensor, numel: int) -> None:
        """Refuse a payload from the network that is not one of ``numel`` finite elements, before anything relies on it.

        Raises:
            CodecError: wrong size, or it decodes to a value that is not finite.
        """
        ...


@dataclass(frozen=True, slots=True)
class BlockCodec(ABC):
    """A codec whose blocks are encoded and decoded as a whole."""

    encoding: Encoding

    @property
    def name(self) -> str:
        """See ``Codec``."""
        return self.encoding.name

    def payload_bytes(self, numel: int) -> int:
        """See ``Codec``."""
        return self.encoding.payload_bytes(numel)

    def encode(self, values: Tensor) -> Tensor:
        """See ``Codec``."""
        payload = recycled(self.payload_bytes(values.numel()), torch.uint8)
        scratch = torch.empty(min(BLOCK, values.numel()))
        for start in range(0, values.numel(), BLOCK):
            block = values[start : start + BLOCK]
            self.encode_into(block, payload, start, scratch[: block.numel()])
        return payload

    def encode_into(self, values: Tensor, payload: Tensor, start: int, decoded: Tensor) -> None:
        """See ``Codec``."""
        require_flat(values)
        begin, end = self.payload_bytes(start), self.payload_bytes(start + values.numel())
        require_grid(self, payload, start, end)
        self._encode_block(values.detach(), payload[begin:end], decoded)

    def decode_into(self, payload: Tensor, start: int, out: Tensor) -> None:
        """See ``Codec``."""
        require_grid(self, payload, start, self.payload_bytes(start + out.numel()))
        for offset in range(0, out.numel(), BLOCK):
            block = out[offset : offset + BLOCK]
            self._decode_block(self._block(payload, start + offset, block.numel()), block)

    def decode(self, payload: Tensor, start: int, scratch: Tensor) -> Tensor:
        """See ``Codec``."""
        self.decode_into(payload, start, scratch)
        return scratch

    def check(self, payload: Tensor, numel: int) -> None:
        """See ``Codec``."""
        require_size(self, payload, numel)
        for start in range(0, numel, BLOCK):
            size = min(BLOCK, numel - start)
            self._check_block(self._block(payload, start, size), size)

    def _block(self, payload: Tensor, start: int, numel: int) -> Tensor:
        begin = self.payload_bytes(start)
        return payload[begin : begin + self.encoding.block_bytes(numel)]

    @abstractmethod
    def _encode_block(self, values: Tensor, payload: Tensor, decoded: Tensor) -> None: ...

    @abstractmethod
    def _decode_block(self, payload: Tensor, out: Tensor) -> None: ...

    @abstractmethod
    def _check_block(self, payload: Tensor, numel: int) -> None: ...


def is_finite(values: Tensor) -> bool:
    """Whether every value is finite; reads them once (``isfinite().all()`` takes ten times as long)."""
    if values.numel() == 0:
        return True
    low, high = torch.aminmax(values)  # propagates NaN
    return math.isfinite(low.item()) and math.isfinite(high.item())


def require_flat(values: Tensor) -> None:
    """Refuse anything but a flat, contiguous f32 tensor in host memory.

    Raises:
        CodecError: it is something else.
    """
    if values.dtype != torch.float32 or values.dim() != 1 or not values.is_contiguous() or values.device.type != "cpu":
        raise CodecError(
            f"a flat contiguous float32 tensor on the cpu is wanted, "
            f"not {values.dtype} of shape {tuple(values.shape)} on {values.device}"
        )


def require_finite(values: Tensor) -> None:
    """Refuse values that are not finite.

    Raises:
        CodecError: some are not; it says how many, and where the first one is.
    """
    if not is_finite(values):
        wrong = torch.isfinite(values).logical_not_().nonzero()
        index = int(wrong[0].item())
        raise CodecError(
            f"an outer gradient holds {len(wrong)} of {len(values)} values that are not finite, "
            f"the first ({values[index].item()}) at element {index}: has the learner's training diverged?"
        )


def require_size(codec: Codec, payload: Tensor, numel: int) -> None:
    """Refuse a payload that has not exactly the bytes of ``numel`` elements.

    Raises:
        CodecError: it has not.
    """
    if payload.numel() != codec.payload_bytes(numel):
        raise CodecError(
            f"a {codec.name} payload of {numel} elements has {codec.payload_bytes(numel)} bytes, not {payload.numel()}"
        )


def require_grid(codec: Codec, payload: Tensor, start: int, end: int) -> None:
    """Check that ``end``, where the last wanted byte ends, is on the grid or at the payload's end."""
    on_grid = end == payload.numel() or end % codec.payload_bytes(BLOCK) == 0
    if start < 0 or start % BLOCK or end > payload.numel() or not on_grid:
        raise CodecError(
            f"elements from {start} to byte {end} are not whole blocks of a {codec.name} payload "
            f"of {payload.numel()} bytes"
        )


def reinterpret(payload: Tensor, dtype: torch.dtype) -> Tensor:
    """The bytes as ``dtype``; copied only if they do not begin at a multiple of its size."""
    return (payload.clone() if payload.storage_offset() % dtype.itemsize else payload).view(dtype)
