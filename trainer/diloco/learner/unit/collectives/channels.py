"""What the processes of a learner tell each other: orders and numbers in host memory, and tensors."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from diloco.learner.unit.orders import NUMBERS, Order, decoded


class Channels(ABC):
    """This process's end."""

    def __init__(self, rank: int, ranks: int, device: torch.device, control: Any, saving: Any) -> None:
        """``control``, ``saving``: gloo groups of all processes; the threads that write checkpoints use the second."""
        self.rank, self.ranks, self.device = rank, ranks, device
        self._control, self._saving = control, saving

    def tell(self, order: Order) -> None:
        """From the first process: tell the others what it does next."""
        self.share(torch.tensor(order.encoded()))

    def hear(self) -> Order:
        """In the others: wait for what to do next.

        Raises:
            OrderError: the first process has another version.
            RuntimeError: it has ended.
        """
        numbers = torch.zeros(NUMBERS, dtype=torch.int64)
        self.share(numbers)
        return decoded(numbers.tolist())

    def share(self, tensor: Tensor) -> None:
        """Overwrite a tensor in host memory, of one shape and type in all processes, with that of the first."""
        self._control.broadcast(tensor, 0).wait()

    def share_list(self, numbers: Sequence[int] = (), *, saving: bool = False) -> list[int]:
        """The first process's ``numbers``, in all. ``saving``: among the threads that write checkpoints."""
        group = self._saving if saving else self._control
        size = torch.tensor([len(numbers)])
        group.broadcast(size, 0).wait()
        shared = torch.tensor(numbers, dtype=torch.int64) if self.rank == 0 else torch.empty(*size, dtype=torch.int64)
        group.broadcast(shared, 0).wait()
        return shared.tolist()

    def all_saved(self, numbers: Sequence[int]) -> list[list[int]]:
        """The ``numbers``, equally many, of all processes' threads that write checkpoints, by rank."""
        own = torch.tensor(numbers, dtype=torch.int64)
        every = [torch.empty_like(own) for _ in range(self.ranks)]
        self._saving.allgather(every, own).wait()
        return [one.tolist() for one in every]

    def all_have(self, numbers: Sequence[int]) -> list[list[int]]:
        """The ``numbers``, equally many, of all processes, by rank."""
        own = torch.tensor(numbers, dtype=torch.int64)
        every = [torch.empty_like(own) for _ in range(self.ranks)]
        self._control.allgather(every, own).wait()
        return [one.tolist() for one in every]

    def least(self, number: int) -> int:
        """The least ``number`` of all processes."""
        least = torch.tensor([number])
        self._control.allreduce(least, ReduceOp.MIN).wait()
        return int(least)

    @abstractmethod
    def spread(self, tensor: Tensor) -> Tensor:
        """Overwrite a tensor on the device, which is contiguous, with that of the first process; returns it."""

    @abstractmethod
    def collect(self, given: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """In the first process what each has ``given``, flat, on the device, by rank; in the others nothing.

        ``counts``: the elements of each.
        """
