"""The processes of a learner as threads, with checkpoints of optimizers of one small tensor."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from diloco.learner.checkpoint import CheckpointIdentity, CheckpointStore, LearnerCheckpoint
from diloco.learner.checkpoint_parts import Others, Places
from diloco.learner.exchange.residuals import Residual
from diloco.learner.training.fragment_trainer import TrainerState
from diloco.learner.unit.checkpoints import OtherRanks, RankCheckpoints
from diloco.learner.unit.collectives.world import World
from diloco.learner.unit.orders import Op, Order
from diloco.model.sharded import Place

IDENTITY = CheckpointIdentity("job", "here/cpu/0", "0123456789abcdef.base", "AdamW")
ROWS = 5


class _Channel:
    """Hands numbers among threads that all call."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=60.0)
        self._numbers: list[list[int]] = [[]] * ranks

    def every(self, rank: int, numbers: Sequence[int]) -> list[list[int]]:
        try:
            self._numbers[rank] = list(numbers)
            self._barrier.wait()
            every = list(self._numbers)
            self._barrier.wait()
        except threading.BrokenBarrierError as error:
            raise RuntimeError("connection closed by peer") from error
        return every

    def close(self) -> None:
        self._barrier.abort()


class ThreadWorld:
    """A `World` of one thread."""

    def __init__(self, rank: int, ranks: int, control: _Channel, saving: _Channel) -> None:
        self.rank, self.ranks, self._control, self._saving = rank, ranks, control, saving

    def tell(self, order: Order) -> None:
        self._control.every(self.rank, [order.op, order.a, order.b])

    def hear(self) -> Order:
        op, a, b = self._control.every(self.rank, [])[0]
        return Order(Op(op), a, b)

    def share_list(self, numbers: Sequence[int] = (), *, saving: bool = False) -> list[int]:
        return (self._saving if saving else self._control).every(self.rank, numbers)[0]

    def all_saved(self, numbers: Sequence[int]) -> list[list[int]]:
        return self._saving.every(self.rank, numbers)

    def least(self, number: int) -> int:
        return min(one for (one,) in self._control.every(self.rank, [number]))


@dataclass
class OneTensor:
    """An optimizer of a matrix of `ROWS` rows, of which it has some."""

    own: dict[str, Place]
    held: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0

    def places(self) -> Places:
        return self.own

    def state(self) -> dict[str, Tensor]:
        return dict(self.held)

    def load_state(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        self.held, self.steps = dict(tensors), steps

    def start_over(self) -> None:
        self.held, self.steps = {}, 0


def moments(value: float) -> Tensor:
    """The whole moments after a number of steps."""
    return value + torch.arange(ROWS * 2.0).view(ROWS, 2)


def rows(rank: int, ranks: int) -> Place:
    """Those of a rank, as torch deals them: the last ranks may have fewer, or none."""
    each = -(-ROWS // ranks)
    first = min(rank * each, ROWS)
    return Place((first, 0), (min(each, ROWS - first), 2), (ROWS, 2))


def whole(rank: int, ranks: int) -> Place:
    """All, for each rank."""
    del rank, ranks
    return Place((0, 0), (ROWS, 2), (ROWS, 2))


class Unit:
    """The processes of a learner, each in a thread, on one node or more."""

    def __init__(
        self, directory: Path, ranks: int, processes: int = 0, place: Callable[[int, int], Place] = rows
    ) -> None:
        """``processes``: of each node, whose directory is ``directory / "node-N"``; 0: all in ``directory``."""
        channels = _Channel(ranks), _Channel(ranks)
        worlds = [cast("World", ThreadWorld(rank, ranks, *channels)) for rank in range(ranks)]
        self._channels = channels
        self.optimizers = [
            OneTensor({"exp_avg.w": place(rank, ranks), "step.w": Place((), (), ())}) for rank in range(ranks)
        ]
        folders = [directory / f"node-{rank // processes}" if processes else directory for rank in range(ranks)]
        self._world = worlds[0]
        others = OtherRanks(self.optimizers[0].places(), worlds[0]) if ranks > 1 else Others(self.optimizers[0].own)
        self.store = CheckpointStore(folders[0], IDENTITY, others)
        for rank in range(1, ranks):
            checkpoints = RankCheckpoints(folders[rank], self.optimizers[rank], worlds[rank], processes or ranks)
            threading.Thread(target=self._follow, args=(worlds[rank], checkpoints), daemon=True).start()

    @staticmethod
    def _follow(world: World, checkpoints: RankCheckpoints) -> None:
        with suppress(RuntimeError):  # the end
            while True:
                order = world.hear()
                if order.op is Op.SAVE:
                    checkpoints.save()
                elif order.op is Op.LOAD:
                    checkpoints.load(order.a, order.b)

    def save(self, steps: int, value: float | None = None) -> Path:
        """Write a checkpoint of moments that are those after ``steps``."""
        for optimizer in self.optimizers:
            place = optimizer.own["exp_avg.w"]
            mine = moments(steps if value is None else value)[place.first[0] :][: place.shape[0]]
            optimizer.load_state({"exp_avg.w": mine.clone(), "step.w": torch.tensor(float(steps))}, steps)
        first = self.optimizers[0]
        if len(self.optimizers) > 1:
            self._world.tell(Order(Op.SAVE))
        state = TrainerState(first.state(), steps, steps, 0, 0)
        return self.store.save(LearnerCheckpoint(state, {0: Residual(1, torch.ones(3))}))

    def load(self) -> int | None:
        """Steps of the checkpoint that is restored."""
        found = self.store.load()
        if len(self.optimizers) > 1:
            self._world.tell(Order(Op.START_OVER))  # the others have done what was told before
        if found is None:
            return None
        self.optimizers[0].load_state(found.state.tensors, found.state.optimizer_steps)
        assert {optimizer.steps for optimizer in self.optimizers} == {found.state.steps}
        return found.state.steps

    def restored(self) -> Tensor:
        """All moments; those of copies only once."""
        parts: dict[int, Tensor] = {}
        for optimizer in self.optimizers:
            assert optimizer.held["step.w"] == optimizer.steps
            parts[optimizer.own["exp_avg.w"].first[0]] = optimizer.held["exp_avg.w"]
        return torch.cat([parts[first] for first in sorted(parts)])

    def lose_a_writer(self) -> None:
        """Let a thread that writes checkpoints end."""
        self._channels[1].close()

    def close(self) -> None:
        """End all."""
        for channel in self._channels:
            channel.close()
