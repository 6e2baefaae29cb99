"""The proof of a merged fragment: a digest that nobody can make other bytes for.

A tape records it with each merge, so that a restarted syncer can take a fragment from a learner without trusting that
learner. XXH3, which guards transfers against errors, would not do: whoever wants to can find other bytes with the same
value. The digest is a tree of two levels over the merge's grid of blocks, so the merge's threads share the work.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

from diloco.core.merge.fragment_merge import BlockRunner, in_this_thread
from diloco.core.sizes import BLOCK

_BLOCK_BYTES: Final = 4 * BLOCK


def proof_of(values: memoryview, run: BlockRunner = in_this_thread) -> str:
    """SHA-256 over the SHA-256 of each block of a fragment's f32 bytes (contiguous), hexadecimal.

    Two fragments of one size have the same proof only if they have the same bytes. ``run`` may run the pass over all
    blocks in any order and threads: the result does not depend on it.
    """
    data = values.cast("B")
    digests = [b""] * max(1, -(-len(data) // _BLOCK_BYTES))

    def one_pass(blocks: Iterable[int]) -> None:
        for block in blocks:
            digests[block] = hashlib.sha256(data[block * _BLOCK_BYTES : (block + 1) * _BLOCK_BYTES]).digest()

    run(one_pass, range(len(digests)))
    return hashlib.sha256(b"".join(digests)).hexdigest()
