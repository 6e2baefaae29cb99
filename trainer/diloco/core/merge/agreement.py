"""How far each member of a merge agrees with the others: the cosine between its part of the merge and theirs (ours).

It is measured on a sample of some blocks, so that it takes a few hundredths of the merge's time (`benchmarks/merge.py`;
of every block it took a tenth). Where the sample lies depends on all members' values, so a member that does not know
the others' cannot choose what is looked at.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from diloco.core.merge.rules import MergeRule, Part
from diloco.core.sizes import BLOCK

SAMPLE = 1 << 13
"""Elements of a block, fewer with more members than fit a block. In a fragment of one block, random directions then
have a cosine of 0.01 or so."""
_BLOCKS = 8
"""So many are looked at, or twice as many less one; all of a fragment that has no more."""
_ROW = 1 << 12
"""Elements whose products are added up in f32; beyond that in f64."""


class Agreement:
    """The cosines of one merge's members. Blocks may come in any order, from several threads."""

    def __init__(self, members: int, seed: float, blocks: int) -> None:
        """``seed`` decides where the samples lie; a number that depends on all members' values. ``blocks``: of all."""
        self._members = members
        self._every = max(1, blocks // _BLOCKS)
        self._seed = int(math.frexp(seed)[0] * 2**53) if math.isfinite(seed) else 0
        self._blocks: list[tuple[list[float], list[float], float]] = []
        """Sums over a block's sample: the squares of each member, its products with all together, those' squares."""

    def watch(self, rule: MergeRule, values: Iterable[Tensor], parts: Sequence[Part], out: Tensor, block: int) -> None:
        """Have ``rule`` combine the members' values of block number ``block``, and sample them."""
        if (self._seed + block) % self._every:
            rule.combine(values, parts, out)
            return
        sample = min(SAMPLE, max(1, BLOCK // self._members))
        start = (self._seed + 7919 * block) % max(1, out.numel() // sample) * sample
        rows = torch.empty(self._members, min(sample, out.numel() - start))

        def passed() -> Iterator[Tensor]:
            for row, one in zip(rows, values, strict=True):
                row.copy_(one[start : start + row.numel()])
                yield one

        rule.combine(passed(), parts, out)
        for span, first, last in parts:
            within = rows[:, max(first - start, 0) : max(last - start, 0)]
            if within.numel():
                within.mul_(torch.tensor(span.factors).unsqueeze(1))
        total = rows.sum(0, keepdim=True)
        self._blocks.append((_sums(rows * rows), _sums(rows * total), _sums(total * total)[0]))

    def cosines(self) -> list[float | None]:
        """By member: its cosine with the sum of the others; None: one of the two is zero, or too long for f32."""
        square = math.fsum(total for _, _, total in self._blocks)
        found: list[float | None] = []
        for index in range(self._members):
            own = math.fsum(squares[index] for squares, _, _ in self._blocks)
            shared = math.fsum(products[index] for _, products, _ in self._blocks)
            others = square - 2 * shared + own
            if 0.0 < own < math.inf and 0.0 < others < math.inf:
                found.append(max(-1.0, min(1.0, (shared - own) / math.sqrt(own) / math.sqrt(others))))
            else:
                found.append(None)
        return found


def _sums(products: Tensor) -> list[float]:
    """Of each row, rounded the same however many threads there are."""
    whole = products.shape[1] // _ROW * _ROW
    sums = products[:, whole:].sum(1).double()
    if whole:
        sums += products[:, :whole].reshape(len(products), -1, _ROW).sum(2).double().sum(1)
    found: list[float] = sums.tolist()
    return found
