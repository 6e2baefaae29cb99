"""A seeded permutation of n numbers that is computed, not stored, so n is not limited by memory.

A Feistel network on 2b bits is a bijection whatever its round function. A result of n or more is encrypted again until
it is below n (cycle walking), at most four times on average.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # SplitMix64's multipliers


class Permutation:
    """A bijection of 0 .. count - 1, determined by ``key`` (any text)."""

    def __init__(self, count: int, key: str) -> None:
        if count < 1:
            raise ValueError(f"count is {count}, it must be at least 1")
        self._count = np.uint64(count)
        self._half_bits = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half_bits)) - 1)
        digest = hashlib.blake2b(key.encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = np.frombuffer(digest, dtype="<u8")

    def __call__(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The image of each of ``positions`` (each in 0 .. count - 1), same shape."""
        values = self._encrypt(positions.astype(np.uint64))
        outside = values >= self._count
        while outside.any():
            values[outside] = self._encrypt(values[outside])
            outside = values >= self._count
        return values.astype(np.int64)

    def _encrypt(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._half_bits, values & self._mask
        for key in self._keys:
            mixed = right ^ key
            for multiplier in _MIX:
                mixed = (mixed ^ (mixed >> np.uint64(29))) * multiplier
            left, right = right, left ^ ((mixed >> np.uint64(32)) & self._mask)
        encrypted: NDArray[np.uint64] = (left << self._half_bits) | right
        return encrypted
