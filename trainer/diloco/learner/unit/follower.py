"""What the other processes of a learner do: wait for an order, do it, and wait for the next."""

from contextlib import suppress

import torch

from diloco.learner.training.steps import TrainingDivergedError
from diloco.learner.unit.checkpoints import RankCheckpoints
from diloco.learner.unit.orders import Op
from diloco.learner.unit.rank import Rank


def follow(rank: Rank, checkpoints: RankCheckpoints) -> None:
    """Do what the first process tells, until the end.

    Raises:
        OrderError, RuntimeError: the first process has another version, or has ended.
        DataError, ModelError: see `InnerSteps`.
    """
    world, batch_size = rank.world, rank.data.sampler.sampling.batch_size
    while True:
        order = world.hear()
        match order.op:
            case Op.STEP:
                numbers = torch.empty(batch_size, dtype=torch.int64)
                world.share(numbers)
                with suppress(TrainingDivergedError):  # the first process says what then
                    rank.inner.step(numbers.numpy(), order.a, order.x)
            case Op.CAPTURE:
                rank.give(order.a)
            case Op.APPLY:
                rank.receive(order.a, None)
            case Op.EVALUATE:
                rank.evaluate()
            case Op.START_OVER:
                rank.inner.start_over()
            case Op.SAVE:
                checkpoints.save()
            case Op.LOAD:
                checkpoints.load(order.a, order.b)
            case Op.END:
                checkpoints.close()
                return
