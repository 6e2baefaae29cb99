"""Codecs: encode an outer gradient for the wire, and decode it where it is merged.

A codec works on a flat f32 buffer that is cut on a fixed grid of ``BLOCK`` elements. A payload is its blocks' bytes in
order, and each block can be read separately, so that merging works on cache-sized pieces and a shard of a fragment is a
contiguous range of bytes.

Rounding is to nearest and not random: equal values give equal bytes. Values that are not finite are always refused:
by ``encode`` where they arise, by ``check`` when a payload comes from the network, and again by the merge.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from diloco.core.buffers import recycled
from diloco.core.sizes import BLOCK, ENCODINGS, Encoding

SMALLEST_STEP = 2.0**-100
"""Groups whose quantization step would be smaller are sent as zeros: below it f32 loses precision."""

_LARGEST_RISE = 1 + 2.0**-7
"""Factor by which a step that is rounded up to a bf16 grows at most."""

_TILE = 1 << 16
"""Elements that are worked on at once within a block: they and as much of scratch stay in a core's own cache."""


class CodecError(ValueError):
    """Values that cannot be encoded or a payload that cannot be decoded."""


class Codec(Protocol):
    """Turns a flat f32 buffer into bytes and back."""

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


def codec_named(name: str) -> Codec:
    """The codec that a job's ``sync.compression`` names.

    Raises:
        CodecError: there is none of that name.
    """
    for codec in CODECS:
        if codec.name == name:
            return codec
    raise CodecError(f"unknown codec {name!r}; use {', '.join(codec.name for codec in CODECS)}")


@dataclass(frozen=True, slots=True)
class PlainCodec:
    """Every element in a floating-point type of its own: f32 as it is, or bf16 (relative error at most 2^-8)."""

    encoding: Encoding
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """See ``Codec``."""
        return self.encoding.name

    def payload_bytes(self, numel: int) -> int:
        """See ``Codec``."""
        return self.encoding.payload_bytes(numel)

    def encode(self, values: Tensor) -> Tensor:
        """See ``Codec``. With f32 the payload is ``values``' own memory."""
        if self.dtype == torch.float32:
            require_flat(values)
            _require_finite(values)
            return values.detach().view(torch.uint8)
        payload = recycled(self.payload_bytes(values.numel()), torch.uint8)
        self._store(values, payload)
        return payload

    def encode_into(self, values: Tensor, payload: Tensor, start: int, decoded: Tensor) -> None:
        """See ``Codec``."""
        begin, end = self.payload_bytes(start), self.payload_bytes(start + values.numel())
        _require_grid(self, payload, start, end)
        decoded.copy_(self._store(values, payload[begin:end]))

    def decode_into(self, payload: Tensor, start: int, out: Tensor) -> None:
        """See ``Codec``."""
        out.copy_(self._stored(payload, start, out.numel()))

    def decode(self, payload: Tensor, start: int, scratch: Tensor) -> Tensor:
        """See ``Codec``."""
        stored = self._stored(payload, start, scratch.numel())
        return stored if stored.dtype == torch.float32 else scratch.copy_(stored)

    def check(self, payload: Tensor, numel: int) -> None:
        """See ``Codec``."""
        _require_size(self, payload, numel)
        for start in range(0, numel, BLOCK):
            if not is_finite(self._stored(payload, start, min(BLOCK, numel - start))):
                raise CodecError(f"a {self.name} payload holds a value that is not finite")

    def _store(self, values: Tensor, payload: Tensor) -> Tensor:
        require_flat(values)
        encoded = payload.view(self.dtype).copy_(values.detach())
        if not is_finite(encoded):
            _require_finite(values)
            raise CodecError(f"an outer gradient holds a value that is too large for {self.name}")
        return encoded

    def _stored(self, payload: Tensor, start: int, numel: int) -> Tensor:
        begin, end = start * self.dtype.itemsize, (start + numel) * self.dtype.itemsize
        _require_grid(self, payload, start, end)
        return _reinterpret(payload[begin:end], self.dtype)


@dataclass(frozen=True, slots=True)
class ScaledCodec:
    """Integers of 8 or 4 bits, each group of ``encoding.group`` elements with a scale of its own.

    A group's step is its largest magnitude over ``limit``, rounded up to a bf16, and an element becomes the nearest
    multiple of the step: the error is at most half a step (in groups sent as zeros, less than ``limit *
    SMALLEST_STEP``). A multiple is an f32 exactly. A block is its groups' scales (bf16), then its codes. A byte holds
    two four-bit codes: the low halves are the first half of the block's elements, the high halves the second, so that
    unpacking reads and writes sequentially.
    """

    encoding: Encoding

    @property
    def name(self) -> str:
        """See ``Codec``."""
        return self.encoding.name

    @property
    def limit(self) -> int:
        """Largest code; the smallest is ``-limit``."""
        return int(2 ** (self.encoding.bits - 1) - 1)

    @property
    def lift(self) -> int:
        """A code is decoded as a signed byte with its bits on top, so its stored scale is the step over ``lift``."""
        return int(2 ** (8 - self.encoding.bits))

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
        _require_grid(self, payload, start, end)
        self._encode_block(values.detach(), payload[begin:end], decoded)

    def decode_into(self, payload: Tensor, start: int, out: Tensor) -> None:
        """See ``Codec``."""
        _require_grid(self, payload, start, self.payload_bytes(start + out.numel()))
        for offset in range(0, out.numel(), BLOCK):
            block = out[offset : offset + BLOCK]
            begin = self.payload_bytes(start + offset)
            self._decode_block(payload[begin : begin + self.encoding.block_bytes(block.numel())], block)

    def decode(self, payload: Tensor, start: int, scratch: Tensor) -> Tensor:
        """See ``Codec``."""
        self.decode_into(payload, start, scratch)
        return scratch

    def check(self, payload: Tensor, numel: int) -> None:
        """See ``Codec``. Integers are finite, so only the scales are checked."""
        _require_size(self, payload, numel)
        for start in range(0, numel, BLOCK):
            block = min(BLOCK, numel - start)
            begin = self.payload_bytes(start)
            scales = _reinterpret(payload[begin : begin + self.encoding.scale_bytes(block)], torch.bfloat16)
            if not is_finite(scales * 128.0):  # no code is further from 0 than the byte's -128
                raise CodecError(f"a {self.name} payload holds a scale that makes values that are not finite")

    def _encode_block(self, values: Tensor, payload: Tensor, decoded: Tensor) -> None:
        numel, group = values.numel(), self.encoding.group
        scale_bytes, padding = self.encoding.scale_bytes(numel), -numel % group
        groups, work = values, decoded
        if padding:
            groups = torch.nn.functional.pad(values, (0, padding))
            work = torch.empty_like(groups)
        groups, work = groups.view(-1, group), work.view(-1, group)
        step = torch.empty(len(groups), 1)
        for of_tile, sizes, largest in _tiles(group, groups, work, step):
            # Positive numbers compare as their bits do, which takes half as long; NaN is larger than all.
            torch.amax(torch.abs(of_tile, out=sizes).view(torch.int32), 1, keepdim=True, out=largest.view(torch.int32))
        step.div_(self.limit)
        step[step < SMALLEST_STEP] = 0.0
        if not is_finite(step * ((self.limit + 1) * _LARGEST_RISE)):
            _require_finite(values)
            raise CodecError(f"an outer gradient holds a value that is too large for {self.name}")
        step.view(torch.int32).add_(0xFFFF).bitwise_and_(-0x10000)  # a bf16 is the upper half of an f32
        payload[:scale_bytes].view(torch.bfloat16).copy_(step.view(-1)).div_(self.lift)
        steps = torch.where(step == 0.0, math.inf, step)  # x / inf is 0
        packed = payload[scale_bytes:]
        in_place = self.encoding.bits == 8 and not padding
        codes = packed if in_place else torch.empty(groups.numel(), dtype=torch.uint8)
        signed = codes.view(torch.int8).view(-1, group)
        for of_tile, steps_of, codes_of, made, step_of in _tiles(group, groups, steps, signed, work, step):
            # At most `limit` from 0: a step is the largest magnitude over it, and its error is undone by rounding.
            codes_of.copy_(torch.div(of_tile, steps_of, out=made).round_())
            made.copy_(codes_of).mul_(step_of)  # from the codes, so that a zero has the sign that it is decoded with
        if padding:
            decoded.copy_(work.view(-1)[:numel])
        codes = codes[:numel]
        if self.encoding.bits == 4:
            half = packed.numel()
            torch.bitwise_and(codes[:half], 15, out=packed)
            packed[: numel - half] |= codes[half:] * 16
        elif padding:
            packed.copy_(codes)

    def _decode_block(self, payload: Tensor, out: Tensor) -> None:
        numel = out.numel()
        scale_bytes = self.encoding.scale_bytes(numel)
        scales, codes = _reinterpret(payload[:scale_bytes], torch.bfloat16).float(), payload[scale_bytes:]
        if self.encoding.bits == 8:
            out.copy_(codes.view(torch.int8))
        else:
            half = codes.numel()
            out[:half].copy_((codes * 16).view(torch.int8))
            out[half:].copy_(torch.bitwise_and(codes, 0xF0).view(torch.int8)[: numel - half])
        group = self.encoding.group
        whole = numel // group
        out[: whole * group].view(whole, group).mul_(scales[:whole].view(whole, 1))
        if whole * group < numel:
            out[whole * group :].mul_(scales[whole])


CODECS: tuple[Codec, ...] = (
    PlainCodec(ENCODINGS["None"], torch.float32),
    PlainCodec(ENCODINGS["BF16"], torch.bfloat16),
    ScaledCodec(ENCODINGS["Int8"]),
    ScaledCodec(ENCODINGS["Int4"]),
)


def _tiles(row: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Parts of tensors of equally many rows, the first with ``row`` elements in each: what is worked on at once."""
    return zip(*(torch.split(one, _TILE // row) for one in tensors), strict=True)


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


def _require_finite(values: Tensor) -> None:
    if not is_finite(values):
        wrong = torch.isfinite(values).logical_not_().nonzero()
        index = int(wrong[0].item())
        raise CodecError(
            f"an outer gradient holds {len(wrong)} of {len(values)} values that are not finite, "
            f"the first ({values[index].item()}) at element {index}: has the learner's training diverged?"
        )


def _require_size(codec: Codec, payload: Tensor, numel: int) -> None:
    if payload.numel() != codec.payload_bytes(numel):
        raise CodecError(
            f"a {codec.name} payload of {numel} elements has {codec.payload_bytes(numel)} bytes, not {payload.numel()}"
        )


def _require_grid(codec: Codec, payload: Tensor, start: int, end: int) -> None:
    """Check that ``end``, where the last wanted byte ends, is on the grid or at the payload's end."""
    on_grid = end == payload.numel() or end % codec.payload_bytes(BLOCK) == 0
    if start < 0 or start % BLOCK or end > payload.numel() or not on_grid:
        raise CodecError(
            f"elements from {start} to byte {end} are not whole blocks of a {codec.name} payload "
            f"of {payload.numel()} bytes"
        )


def _reinterpret(payload: Tensor, dtype: torch.dtype) -> Tensor:
    """The bytes as ``dtype``; copied only if they do not begin at a multiple of its size."""
    return (payload.clone() if payload.storage_offset() % dtype.itemsize else payload).view(dtype)
