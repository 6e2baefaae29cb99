"""The codecs by name; those that send every value are here, `sparse_codec` has the other one."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from diloco.core.buffers import recycled
from diloco.core.merge.codec import (
    BlockCodec,
    Codec,
    CodecError,
    is_finite,
    reinterpret,
    require_finite,
    require_flat,
    require_grid,
    require_size,
)
from diloco.core.merge.sparse_codec import SparseCodec
from diloco.core.sizes import BLOCK, ENCODINGS, Encoding, encoding_of
from diloco.spec.sync import SyncSpec

SMALLEST_STEP = 2.0**-100
"""Groups whose quantization step would be smaller are sent as zeros: below it f32 loses precision."""

_LARGEST_RISE = 1 + 2.0**-7
"""Factor by which a step that is rounded up to a bf16 grows at most."""

_TILE = 1 << 16
"""Elements that are worked on at once within a block: they and as much of scratch stay in a core's own cache."""


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
            require_finite(values)
            return values.detach().view(torch.uint8)
        payload = recycled(self.payload_bytes(values.numel()), torch.uint8)
        self._store(values, payload)
        return payload

    def encode_into(self, values: Tensor, payload: Tensor, start: int, decoded: Tensor) -> None:
        """See ``Codec``."""
        begin, end = self.payload_bytes(start), self.payload_bytes(start + values.numel())
        require_grid(self, payload, start, end)
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
        require_size(self, payload, numel)
        for start in range(0, numel, BLOCK):
            if not is_finite(self._stored(payload, start, min(BLOCK, numel - start))):
                raise CodecError(f"a {self.name} payload holds a value that is not finite")

    def _store(self, values: Tensor, payload: Tensor) -> Tensor:
        require_flat(values)
        encoded = payload.view(self.dtype).copy_(values.detach())
        if not is_finite(encoded):
            require_finite(values)
            raise CodecError(f"an outer gradient holds a value that is too large for {self.name}")
        return encoded

    def _stored(self, payload: Tensor, start: int, numel: int) -> Tensor:
        begin, end = start * self.dtype.itemsize, (start + numel) * self.dtype.itemsize
        require_grid(self, payload, start, end)
        return reinterpret(payload[begin:end], self.dtype)


@dataclass(frozen=True, slots=True)
class ScaledCodec(BlockCodec):
    """Integers of 8 or 4 bits, each group of ``encoding.group`` elements with a scale of its own.

    A group's step is its largest magnitude over ``limit``, rounded up to a bf16, and an element becomes the nearest
    multiple of the step: the error is at most half a step (in groups sent as zeros, less than ``limit *
    SMALLEST_STEP``). A multiple is an f32 exactly. A block is its groups' scales (bf16), then its codes. A byte holds
    two four-bit codes: the low halves are the first half of the block's elements, the high halves the second, so that
    unpacking reads and writes sequentially.
    """

    @property
    def limit(self) -> int:
        """Largest code; the smallest is ``-limit``."""
        return int(2 ** (self.encoding.bits - 1) - 1)

    @property
    def lift(self) -> int:
        """A code is decoded as a signed byte with its bits on top, so its stored scale is the step over ``lift``."""
        return int(2 ** (8 - self.encoding.bits))

    def _check_block(self, payload: Tensor, numel: int) -> None:
        """Integers are finite, so only the scales are checked."""
        scales = reinterpret(payload[: self.encoding.scale_bytes(numel)], torch.bfloat16)
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
            require_finite(values)
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
        scales, codes = reinterpret(payload[:scale_bytes], torch.bfloat16).float(), payload[scale_bytes:]
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
    SparseCodec(ENCODINGS["TopK"]),
)


def codec_named(name: str) -> Codec:
    """The codec of this name in ``sync.compression``; TopK with the default density.

    Raises:
        CodecError: there is none of that name.
    """
    for codec in CODECS:
        if codec.name == name:
            return codec
    raise CodecError(f"unknown codec {name!r}; use {', '.join(codec.name for codec in CODECS)}")


def uplink_codec(sync: SyncSpec) -> Codec:
    """The codec of a job's outer gradients."""
    return codec_of(encoding_of(sync.compression, sync.density))


def codec_of(encoding: Encoding) -> Codec:
    """The codec that makes payloads of this form."""
    return SparseCodec(encoding) if encoding.kept else codec_named(encoding.name)


def _tiles(row: int, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Parts of tensors of equally many rows, the first with ``row`` elements in each: what is worked on at once."""
    return zip(*(torch.split(one, _TILE // row) for one in tensors), strict=True)
