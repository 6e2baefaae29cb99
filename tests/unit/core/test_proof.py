"""The proof of a fragment."""

import hashlib
import random

from diloco.core.proof import proof_of


def test_it_is_the_sha256_of_the_bytes() -> None:
    data = random.Random(1).randbytes(4096)
    assert proof_of(memoryview(data)) == hashlib.sha256(data).hexdigest()
