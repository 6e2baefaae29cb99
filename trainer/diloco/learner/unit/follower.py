"""What the other processes of a learner do: wait for an order, do it, and wait for the next."""

from typing import Final, Protocol

import torch
from torch import Tensor

from diloco.learner.unit.checkpoints import RankCheckpoints
from diloco.learner.unit.orders import Op, Order, OrderError
from diloco.learner.unit.rank import Rank

_DURING_A_STEP: Final = frozenset({Op.CAPTURE, Op.APPLY})
"""What the first process tells before it waits for a step's numbers."""


class Obeying(Protocol):
    """What takes orders: see `ModelParts` and `Rank`."""

    def give(self, fragment: int) -> object:
        """See `ModelParts`."""

    def receive(self, fragment: int, values: Tensor | None) -> None:
        """See `ModelParts`."""

    def evaluate(self) -> object:
        """Evaluate the model as received."""

    def start_over(self) -> None:
        """Drop the inner optimizer's state."""


def follow(rank: Rank, checkpoints: RankCheckpoints) -> None:
    """Do what the first process tells, until the end.

    Raises:
        OrderError, RuntimeError: the first process has another version, or has ended.
        DataError, ModelError: see `InnerSteps`.
    """
    world, batch_size = rank.world, rank.data.sampler.sampling.batch_size
    while (order := world.hear()).op is not Op.END:
        if order.op not in _DURING_A_STEP:
            rank.inner.settle()
        if order.op is Op.STEP:
            numbers = torch.empty(1 + order.b, batch_size, dtype=torch.int64)
            world.share(numbers)
            rank.inner.begin(numbers[0].numpy(), order.a, order.x)
            if order.b:
                rank.inner.read_ahead(numbers[1].numpy())
        else:
            obey(order, rank, checkpoints)
    checkpoints.close()


def obey(order: Order, rank: Obeying, checkpoints: RankCheckpoints) -> None:
    """Do what is told between two steps; raises as what it calls does."""
    match order.op:
        case Op.CAPTURE:
            rank.give(order.a)
        case Op.APPLY:
            rank.receive(order.a, None)
        case Op.EVALUATE:
            rank.evaluate()
        case Op.START_OVER:
            rank.start_over()
        case Op.SAVE:
            checkpoints.save()
        case Op.LOAD:
            checkpoints.load(order.a, order.b)
        case _:
            raise OrderError(f"order: {order.op.name} is not possible between two steps")
