"""TopK: of each group only the largest values are sent, in 2 bits each and with their places.

SparseLoCo (arXiv 2508.15706) gives the groups' length and the bits; the form is ours. A value becomes its sign and one
of two magnitudes of its group: the mean of those that are at most the mean of all that are sent, or of those above it.
A place is the number of values between it and the one sent before it. So no bytes name a place twice or out of order,
and the size of a payload follows from the number of elements alone. A block is its groups' magnitudes (bf16, of each
group the smaller one first), then what is sent, in order, as integers of 14 bits: 12 of the place, the sign, and
whether the magnitude is the larger one. Four of them take 7 bytes.

What is not sent is left to error feedback (`feedback`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diloco.core.merge.codec import BlockCodec, CodecError, is_finite, reinterpret, require_finite

_SIGN, _LARGER = 12, 13
"""Bits beside the place."""
_SHIFTS = torch.tensor([0, 14, 28, 42])
"""Of the four integers in a word of 8 bytes, of which 7 are sent."""
_STEPS = 2.0**20
"""Magnitudes are added up as integers, so many for the group's largest: exactly, and so in any order."""


@dataclass(frozen=True, slots=True)
class SparseCodec(BlockCodec):
    """The ``encoding.kept`` largest values of each ``encoding.group``; of equal ones those that come first."""

    def _encode_block(self, values: Tensor, payload: Tensor, decoded: Tensor) -> None:
        magnitudes, words = [], []
        for rows in self._rows(values):
            places = _largest(rows, self.encoding.sent(rows.shape[1]))
            chosen = rows.gather(1, places)
            sizes = chosen.abs()
            if not is_finite(sizes):  # what is not finite is larger than all that is
                require_finite(values)
            both, larger = _magnitudes(sizes)
            magnitudes.append(both.view(-1))
            gaps = torch.diff(places, prepend=places.new_full((len(places), 1), -1)) - 1
            words.append((gaps | (chosen < 0.0).long() << _SIGN | larger.long() << _LARGER).view(-1))
        scales, sent = torch.cat(magnitudes), _packed(torch.cat(words))
        if not is_finite(scales):
            raise CodecError(f"an outer gradient holds a value that is too large for {self.name}")
        scale_bytes = self.encoding.scale_bytes(values.numel())
        payload[:scale_bytes] = scales.view(torch.uint8)
        payload[scale_bytes:] = sent[: payload.numel() - scale_bytes]
        self._decode_block(payload, decoded)

    def _decode_block(self, payload: Tensor, out: Tensor) -> None:
        out.zero_()
        for rows, (magnitudes, places, words) in zip(self._rows(out), self._read(payload, out.numel()), strict=True):
            values = magnitudes.gather(1, words >> _LARGER)
            rows.scatter_(1, places, values.mul_(1 - 2 * (words >> _SIGN & 1)))

    def _check_block(self, payload: Tensor, numel: int) -> None:
        for magnitudes, _, _ in self._read(payload, numel):
            if not is_finite(magnitudes):
                raise CodecError(f"a {self.name} payload holds a magnitude that is not finite")

    def _rows(self, values: Tensor) -> list[Tensor]:
        """The whole groups, one a row, and what is left, as a row of its own."""
        whole = values.numel() // self.encoding.group * self.encoding.group
        return [
            one for one in (values[:whole].view(-1, self.encoding.group), values[whole:].view(1, -1)) if one.numel()
        ]

    def _read(self, payload: Tensor, numel: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Magnitudes (f32, 2 a row), places (int64, from the start of the row) and integers of the rows of a block.

        Raises:
            CodecError: a place is not in its row.
        """
        encoding, scale_bytes = self.encoding, self.encoding.scale_bytes(numel)
        scales = reinterpret(payload[:scale_bytes], torch.bfloat16).float().view(-1, 2)
        words = _unpacked(payload[scale_bytes:], encoding.sent(numel))
        groups, rest = divmod(numel, encoding.group)
        for rows, size in ((groups, encoding.group), (1, rest)):
            if not rows * size:
                continue
            kept = encoding.sent(size)
            own, words = words[: rows * kept].view(rows, kept), words[rows * kept :]
            places = (own & encoding.group - 1).add_(1).cumsum_(1).sub_(1)
            if (last := int(places[:, -1].max())) >= size:
                raise CodecError(f"a {self.name} payload names value {last} of a group of {size}")
            yield scales[:rows], places, own
            scales = scales[rows:]


def _largest(rows: Tensor, kept: int) -> Tensor:
    """Where each row's ``kept`` largest magnitudes are, in order (int64); of equal ones those that come first."""
    sizes = (rows.view(torch.int32) & 0x7FFFFFFF).numpy()  # they compare as their bits do; NaN is larger than all
    least = np.partition(sizes, sizes.shape[1] - kept, axis=1)[:, sizes.shape[1] - kept, None]
    chosen = sizes >= least
    if np.count_nonzero(chosen) > len(sizes) * kept:
        equal = sizes == least
        wanted = kept - np.count_nonzero(sizes > least, axis=1)[:, None]
        chosen &= ~equal | (equal.cumsum(axis=1) <= wanted)
    return torch.from_numpy(np.flatnonzero(chosen) % sizes.shape[1]).view(-1, kept)


def _magnitudes(sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's two magnitudes (bf16), and which of its ``sizes`` become the larger one."""
    largest = sizes.amax(1, keepdim=True)
    steps = (sizes / largest.where(largest > 0.0, 1.0) * _STEPS).round_().long()
    larger = steps * sizes.shape[1] > steps.sum(1, keepdim=True)
    means = [(steps * one).sum(1, keepdim=True) / one.sum(1, keepdim=True).clamp(min=1) for one in (~larger, larger)]
    return (torch.cat(means, 1).double() / _STEPS * largest).to(torch.bfloat16), larger


def _packed(words: Tensor) -> Tensor:
    """Integers of 14 bits (int64) as bytes, and zeros up to a multiple of 7."""
    words = torch.nn.functional.pad(words, (0, -len(words) % 4))
    return (words.view(-1, 4) << _SHIFTS).sum(1).view(torch.uint8).view(-1, 8)[:, :7].reshape(-1)


def _unpacked(payload: Tensor, count: int) -> Tensor:
    """What ``_packed`` was given."""
    padded = torch.nn.functional.pad(payload, (0, -(-count // 4) * 7 - payload.numel()))
    words = torch.nn.functional.pad(padded.view(-1, 7), (0, 1)).view(torch.int64)
    return (words >> _SHIFTS & 0x3FFF).view(-1)[:count]
