"""The proof of a fragment: another one for other bytes, the same however the work is shared."""

import hashlib
import random

import pytest

from diloco.core.proof import proof_of
from diloco.core.sizes import BLOCK
from tests.support.fragment_merge import backwards

_BYTES = 4 * BLOCK


@pytest.mark.parametrize("size", [4, 4096, _BYTES - 4, _BYTES, _BYTES + 4, 3 * _BYTES + 20])
def test_it_is_a_tree_of_two_levels_over_the_blocks(size: int) -> None:
    data = random.Random(size).randbytes(size)
    blocks = [hashlib.sha256(data[start : start + _BYTES]).digest() for start in range(0, size, _BYTES)]
    assert proof_of(memoryview(data)) == hashlib.sha256(b"".join(blocks)).hexdigest()


def test_the_order_of_the_blocks_and_their_threads_do_not_matter() -> None:
    data = memoryview(random.Random(1).randbytes(5 * _BYTES + 8))
    assert proof_of(data, backwards) == proof_of(data)


@pytest.mark.parametrize("at", [0, _BYTES - 1, _BYTES, 2 * _BYTES + 3])
def test_a_single_bit_makes_another_proof(at: int) -> None:
    data = bytearray(random.Random(2).randbytes(2 * _BYTES + 4))
    proof = proof_of(memoryview(data))
    data[at] ^= 1
    assert proof_of(memoryview(data)) != proof
