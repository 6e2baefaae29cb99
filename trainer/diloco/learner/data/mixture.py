"""Several sources as one row of tokens, in which each has its share.

The tokens to train on come first, then those held out, which are the end of each source; in both, every source has one
stretch, as long as its share. The row is as long as it must be for the source that is largest relative to its share to
be there once; the others repeat in their stretches, whole. Sequences are cut from the row and shuffled over all of it,
as with any source, so a batch is a sample of the mixture, and repetitions are mostly cut into other sequences.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from diloco.learner.data.source import DataError, TokenSource, end_of_document
from diloco.learner.data.tokenfile import TokenFile
from diloco.spec.training import MixturePart, Sources


def training_tokens(total: int, holdout_fraction: float) -> int:
    """How many of ``total`` tokens, from the first on, are not held out."""
    return total - math.floor(total * holdout_fraction)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Tokens ``first`` to ``first + size`` of a source, over and over, up to ``end`` of the row."""

    source: TokenSource
    first: int
    size: int
    begin: int
    end: int


class Mixture:
    """A ``TokenSource``. The row's first ``training_tokens`` hold no token that is held out."""

    def __init__(self, sources: Sequence[TokenSource], weights: Sequence[float], holdout_fraction: float) -> None:
        """``holdout_fraction``: of each source, which must be at least one token, as of the row.

        All sources end documents with one id.
        """
        self.sources = tuple(sources)
        shares = [weight / sum(weights) for weight in weights]
        total = math.ceil(max(len(source) / share for source, share in zip(sources, shares, strict=True)))
        train = training_tokens(total, holdout_fraction)
        self._length = total
        self.vocabulary_size = max(source.vocabulary_size for source in sources)
        self.end_of_document = end_of_document(sources[0])
        self._stretches: list[_Stretch] = []
        for begin, end in ((0, train), (train, total)):
            bounds = [begin + round(part * (end - begin)) for part in accumulate(shares, initial=0.0)]
            for source, (first, last) in zip(sources, pairwise(bounds), strict=True):
                kept = training_tokens(len(source), holdout_fraction)
                place, size = (kept, len(source) - kept) if begin else (0, kept)
                self._stretches.append(_Stretch(source, place, size, first, last))
        self._ends = [stretch.end for stretch in self._stretches]

    def __len__(self) -> int:
        return self._length

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens ``start`` to ``stop``.

        Raises:
            DataError: a source cannot be read.
        """
        out = np.empty(stop - start, dtype=np.int64)
        at = start
        while at < stop:
            stretch = self._stretches[bisect_right(self._ends, at)]
            offset = (at - stretch.begin) % stretch.size
            count = min(stop, stretch.end, at + stretch.size - offset) - at
            out[at - start : at - start + count] = stretch.source.read(
                stretch.first + offset, stretch.first + offset + count
            )
            at += count
        return out


def open_mixture(
    parts: Sequence[MixturePart], holdout_fraction: float, open_part: Callable[[Sources], TokenSource]
) -> Mixture:
    """The parts, each opened by ``open_part``.

    Raises:
        DataError: one cannot be opened, is too short, or has another vocabulary than the first; one line.
    """
    sources: list[TokenSource] = []
    for index, part in enumerate(parts):
        field = f"data.mixture[{index}]"
        try:
            sources.append(open_part(part))
        except DataError as error:
            raise type(error)(f"{field}.{str(error).removeprefix('data.')}") from error
        if (own := _vocabulary(sources[-1])) != (first := _vocabulary(sources[0])):
            raise DataError(f"{field}: has {own}, and data.mixture[0] {first}; use one tokenizer for all parts")
        if training_tokens(len(sources[-1]), holdout_fraction) == len(sources[-1]):
            raise DataError(f"{field}: has {len(sources[-1])} tokens, too few for a holdout of {holdout_fraction:g}")
    return Mixture(sources, [part.weight for part in parts], holdout_fraction)


def _vocabulary(source: TokenSource) -> str:
    tokenizer = source.info.tokenizer if isinstance(source, TokenFile) else "bytes"
    return f"{source.vocabulary_size} ids of tokenizer {tokenizer} (end of document: {end_of_document(source)})"
