"""Has each matrix of a model computed in one process of a learner alone, which gets all of it and hands parts back.

Of parts: each process sends its rows of a matrix to the one that computes it, and gets rows of the result from there.
Of copies: each computes some matrices, and all get the results.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from diloco.learner.training.share import Compute, stack_size
from diloco.model.sharded import part_of


def of_copies(
    compute: Compute, matrices: Sequence[Tensor], dtype: torch.dtype, group: dist.ProcessGroup, ranks: int
) -> Iterator[Tensor]:
    """``compute`` of each, whole in all ``ranks`` processes of the group. ``dtype``: of the results."""
    each = stack_size(matrices[0])
    for first in range(0, len(matrices), ranks * each):
        some = matrices[first : first + ranks * each]
        count = -(-len(some) // ranks)
        own = some[group.rank() * count : (group.rank() + 1) * count]
        made = torch.zeros(count, *some[0].shape, dtype=dtype, device=some[0].device)
        if own:
            made[: len(own)] = compute(torch.stack(list(own)))
        results = made.new_empty(ranks * count, *some[0].shape)
        dist.all_gather_into_tensor(results, made, group=group)
        yield from results[: len(some)]


class Rows(NamedTuple):
    """How a matrix is parted: by rows, in a mesh's one dimension, and the same in the others."""

    group: dist.ProcessGroup
    ranks: int
    rank: int
    rows: int
    """Of the whole matrix."""


def rows_of(parameter: nn.Parameter) -> Rows | None:
    """None: it is parted otherwise."""
    from torch.distributed.tensor import Replicate, Shard  # noqa: PLC0415  # see diloco.model.sharded

    parted: Any = parameter
    by_rows = [place for place, one in enumerate(parted.placements) if type(one) is Shard and one.dim == 0]
    rest = [one for one in parted.placements if not isinstance(one, Replicate)]
    if len(by_rows) != 1 or len(rest) != 1:
        return None
    mesh, dimension = parted.device_mesh, by_rows[0]
    return Rows(mesh.get_group(dimension), mesh.size(dimension), mesh.get_local_rank(dimension), parameter.shape[0])


def of_rows(compute: Compute, parts: Sequence[Tensor], dtype: torch.dtype, rows: Rows, offset: int) -> Iterator[Tensor]:
    """``compute`` of matrices of which each process has ``parts``: its rows of the results, in ``dtype``.

    Matrix i is computed by the process ``offset`` + i, modulo their number.
    """
    ranks, most, columns = rows.ranks, -(-rows.rows // rows.ranks), parts[0].shape[1]
    round_size = ranks * stack_size(parts[0].new_empty(rows.rows, columns, device="meta"))
    for first in range(0, len(parts), round_size):
        some = parts[first : first + round_size]
        held = [range((holder - offset - first) % ranks, len(some), ranks) for holder in range(ranks)]
        order = [number for those in held for number in those]
        counts = [len(those) for those in held]
        own = counts[rows.rank]
        sent = torch.zeros(len(some), most, columns, dtype=dtype, device=some[0].device)
        places = [sent[slot, : len(some[number])] for slot, number in enumerate(order)]
        torch._foreach_copy_(places, [some[number] for number in order])  # one pass
        received = sent.new_empty(ranks * own, most, columns)
        dist.all_to_all_single(received, sent, [own] * ranks, counts, group=rows.group)
        if own:
            whole = received.view(ranks, own, most, columns).transpose(0, 1).reshape(own, ranks * most, columns)
            whole[:, : rows.rows] = compute(whole[:, : rows.rows].contiguous())
            received = whole.view(own, ranks, most, columns).transpose(0, 1).reshape_as(received)
        dist.all_to_all_single(sent, received, counts, [own] * ranks, group=rows.group)
        yield from (place for _, place in sorted(zip(order, places, strict=True), key=lambda pair: pair[0]))


def of_any(compute: Compute, parts: Sequence[Tensor], parameters: Sequence[nn.Parameter]) -> Iterator[Tensor]:
    """``compute`` of what is parted in another way, in each process: its parts of the results."""
    from torch.distributed.tensor import DTensor  # noqa: PLC0415  # see diloco.model.sharded

    for own, parameter in zip(parts, parameters, strict=True):
        parted: Any = parameter
        like = {"shape": parted.shape, "stride": parted.stride()}
        whole: Any = DTensor.from_local(own, parted.device_mesh, parted.placements, run_check=False, **like)
        yield part_of(compute(whole.full_tensor()), parameter)
