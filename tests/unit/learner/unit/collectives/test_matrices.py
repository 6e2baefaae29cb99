import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from diloco.learner.training import share
from diloco.learner.training.optimizers.muon import orthogonal
from diloco.learner.unit.collectives import matrices
from diloco.learner.unit.collectives.matrices import Rows, of_copies, of_rows

F32 = torch.float32


class Group:
    """A process group of threads, which has what sharing out matrices needs."""

    def __init__(self, ranks: int) -> None:
        self._given: list[Any] = [None] * ranks
        self._barrier = threading.Barrier(ranks, timeout=60)
        self._own = threading.local()

    def rank(self) -> int:
        found: int = self._own.rank
        return found

    def each(self, work: Callable[[int], Iterator[Tensor]]) -> list[list[Tensor]]:
        """What comes of the work of each."""
        made: list[list[Tensor]] = [[] for _ in self._given]

        def run(rank: int) -> None:
            self._own.rank = rank
            made[rank] = list(work(rank))

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(made))]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        return made

    def _every(self, given: Any) -> list[Any]:
        self._given[self.rank()] = given
        self._barrier.wait()
        every = list(self._given)
        self._barrier.wait()
        return every

    @staticmethod
    def all_to_all_single(to: Tensor, given: Tensor, sizes: list[int], given_sizes: list[int], group: "Group") -> None:
        every = group._every([one.clone() for one in torch.split(given, given_sizes)])
        parts = [one[group.rank()] for one in every]
        assert [len(one) for one in parts] == sizes
        to.copy_(torch.cat(parts))

    @staticmethod
    def all_gather_into_tensor(to: Tensor, given: Tensor, group: "Group") -> None:
        to.copy_(torch.cat(group._every(given.clone())))


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrices, "dist", Group)
    monkeypatch.setattr("diloco.learner.training.optimizers.muon.emulates_bf16", lambda _: True)


def drawn(count: int, *shape: int) -> list[Tensor]:
    return list(torch.randn(count, *shape, generator=torch.Generator().manual_seed(0)))


def noted(computed: list[int], stack: Tensor) -> Tensor:
    computed.append(len(stack))
    return orthogonal(stack)


@pytest.mark.parametrize("stack_bytes", [1, 1 << 20], ids=["one at a time", "in stacks"])
@pytest.mark.parametrize("rows", [8, 7, 2])
@pytest.mark.parametrize("count", [1, 9, 11])
def test_matrices_by_rows_are_computed_once_each(
    monkeypatch: pytest.MonkeyPatch, count: int, rows: int, stack_bytes: int
) -> None:
    monkeypatch.setattr(share, "_STACK_BYTES", stack_bytes)
    whole, group, computed = drawn(count, rows, 5), Group(3), [[], [], []]  # type: ignore[var-annotated]  # of numbers
    most = -(-rows // 3)

    def work(rank: int) -> Iterator[Tensor]:
        parts = [one[rank * most : (rank + 1) * most] for one in whole]
        rows_here = Rows(group, 3, rank, rows)  # type: ignore[arg-type]  # a stand-in
        return of_rows(partial(noted, computed[rank]), parts, F32, rows_here, 1)

    for made in zip(*group.each(work), whole, strict=True):
        torch.testing.assert_close(torch.cat(made[:3]), orthogonal(made[3]), rtol=0, atol=1e-6)
    shares = [sum(one) for one in computed]
    assert sum(shares) == count
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("count", [1, 9, 11])
def test_copies_of_matrices_are_computed_once_each(count: int) -> None:
    whole, group, computed = drawn(count, 6, 5), Group(3), [[], [], []]  # type: ignore[var-annotated]  # as above
    made = group.each(lambda rank: of_copies(partial(noted, computed[rank]), whole, F32, group, 3))  # type: ignore[arg-type]  # a stand-in
    for one in made:
        for own, wanted in zip(one, whole, strict=True):
            torch.testing.assert_close(own, orthogonal(wanted), rtol=0, atol=1e-6)
    assert sum(map(sum, computed)) == count
    assert max(map(sum, computed)) == -(-count // 3)
