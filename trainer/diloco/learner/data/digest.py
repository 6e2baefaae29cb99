"""The digest of a job's tokens, by which the syncer knows whether all learners have the same ones.

A token file has a digest of every token, and so has the cache of documents, which is one. Other sources are read at
evenly spread places, which a file that is added, removed, replaced or renamed changes almost always.
"""

from typing import Final

import numpy as np
import xxhash

from diloco.learner.data.mixture import Mixture
from diloco.learner.data.source import TokenSource, read_into
from diloco.learner.data.tokenfile import TokenFile

_PLACES: Final = 1024
_TOKENS: Final = 1024
"""Read at each place (ours): a source of at most 1 Mi tokens is read whole, and none takes long to read."""


def digest_of(source: TokenSource) -> str:
    """The digest, hexadecimal.

    Raises:
        DataError: the source cannot be read.
    """
    if isinstance(source, TokenFile):
        return source.info.digest
    made = xxhash.xxh3_128(len(source).to_bytes(8, "little"))
    if isinstance(source, Mixture):
        for part in source.sources:
            made.update(digest_of(part).encode())
        return made.hexdigest()
    places = min(_PLACES, -(-len(source) // _TOKENS))
    length = min(_TOKENS, len(source))
    tokens = np.empty(length, np.int64)
    for place in range(places):
        read_into(source, place * (len(source) - length) // max(1, places - 1), tokens)
        made.update(tokens.astype("<i8", copy=False).tobytes())
    return made.hexdigest()
