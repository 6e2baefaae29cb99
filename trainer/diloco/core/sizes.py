"""Sizes in bytes of the encodings, for the codecs and for code that computes with sizes alone, without torch.

A payload is its blocks' bytes in order. In an encoding with groups a block is the groups' scales (bf16), then codes.
"""

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

BLOCK: Final = 1 << 19
"""Elements in a block of the grid: 2 MiB of f32, so that the few blocks of a merge stay in the processor's cache."""

_SCALE_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class Encoding:
    """The form of a payload."""

    name: str
    """Its name in a job's ``sync.compression``."""
    bits: int
    """Of a value that is sent, with its place."""
    group: int = 0
    """Elements that share a scale; 0: there are no scales."""
    kept: int = 0
    """Of a group, values that are sent, with two scales; 0: all of them, with one."""

    def payload_bytes(self, numel: int) -> int:
        """Exact size of the payload of ``numel`` elements."""
        blocks, rest = divmod(numel, BLOCK)
        return blocks * self.block_bytes(BLOCK) + self.block_bytes(rest)

    def block_bytes(self, numel: int) -> int:
        """Bytes of one block of ``numel`` elements, at most ``BLOCK``."""
        return self.scale_bytes(numel) + -(-self.sent(numel) * self.bits // 8)

    def sent(self, numel: int) -> int:
        """Values that are sent of a block of ``numel`` elements."""
        if not self.kept:
            return numel
        groups, rest = divmod(numel, self.group)
        return groups * self.kept + -(-rest * self.kept // self.group)

    @property
    def parameter_bytes(self) -> float:
        """Of a parameter in a large payload, scales included."""
        return self.block_bytes(BLOCK) / BLOCK

    def scale_bytes(self, numel: int) -> int:
        """Bytes of a block's scales, which come first."""
        groups = -(-numel // self.group) if self.group else 0
        return groups * _SCALE_BYTES * (2 if self.kept else 1)


ENCODINGS: Final = MappingProxyType(
    {
        encoding.name: encoding
        for encoding in (
            Encoding("None", 32),
            Encoding("BF16", 16),
            Encoding("Int8", 8, group=256),
            Encoding("Int4", 4, group=64),
            Encoding("TopK", 14, group=4096, kept=64),
        )
    }
)
"""By name, from the widest to the narrowest; TopK with the default density."""

F32: Final = ENCODINGS["None"]
"""Elements without encoding."""


def encoding_of(compression: str, density: float | None) -> Encoding:
    """How outer gradients are encoded. ``density``: of TopK; None: the default."""
    encoding = ENCODINGS[compression]
    return replace(encoding, kept=round(density * encoding.group)) if encoding.kept and density else encoding


def downlink_encoding(downlink: str, density: float | None) -> Encoding:
    """How merged fragments are encoded. In TopK with four times the density, up to a quarter (ours)."""
    if downlink == "F32":
        return F32
    encoding = encoding_of(downlink, density)
    return replace(encoding, kept=min(4 * encoding.kept, encoding.group // 4))


def all_reduce_share(learners: int) -> float:
    """What each learner sends for an all-reduce as a ring, and receives, over what is reduced: 2 (M - 1) / M.

    Patarasuk and Yuan 2009.
    """
    return 2 * (learners - 1) / learners


def all_reduce_bytes(parameters: int, learners: int) -> float:
    """What each learner sends in a step of data-parallel training, and receives: an all-reduce of all gradients.

    They are in f32: gradients have their parameters' type.
    """
    return all_reduce_share(learners) * F32.payload_bytes(parameters)
