"""The proof of a merged fragment: a digest that nobody can make other bytes for.

A tape records it after each merge, so that a restarted syncer can take a fragment from a learner without trusting that
learner. XXH3, which guards transfers against errors, would not do: whoever wants to can find other bytes with the same
value.
"""

import hashlib


def proof_of(values: memoryview) -> str:
    """SHA-256 of a fragment's f32 bytes (contiguous), hexadecimal."""
    return hashlib.sha256(values).hexdigest()
