"""A push that is being received, and its calls: what is known of them. Owned by the event loop."""

import asyncio
from typing import TYPE_CHECKING

from diloco.wire.messages import PushHeader, PushReceipt
from diloco.wire.part_messages import Arrivals, PartsReceiver
from diloco.wire.parts import Grid, PartsHeld
from diloco.wire.server.bandwidth import Limit
from diloco.wire.server.calls import Patience

if TYPE_CHECKING:
    from diloco.wire.server.traffic import Parts


class PushCall:
    """One of a transfer's calls."""

    def __init__(self, number: int, patience: Patience, grid: Grid) -> None:
        self.number = number
        self.patience = patience
        self.arrivals = Arrivals(grid)
        self.telling = True
        """Something is being written to the learner."""
        self.over = False


class PushTransfer:
    """A push that is being received."""

    def __init__(self, header: PushHeader, grid: Grid, limit: Limit | None) -> None:
        self.header = header
        self.grid = grid
        self.limit = limit
        self.granted = grid.count if limit is None else 0
        """Parts that may come."""
        self.came = 0
        """Parts that have come, on all calls."""
        self.granting: asyncio.Task[None] | None = None
        self.receiver: PartsReceiver
        self.traffic: Parts
        """Both are set once there is a buffer."""
        self.calls: dict[int, PushCall] = {}
        self.over = False
        self.receipt: asyncio.Future[PushReceipt] = asyncio.get_running_loop().create_future()
        self.receipt.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.giving_up: asyncio.TimerHandle | None = None

    @property
    def held(self) -> PartsHeld:
        """Which parts are here."""
        return self.receiver.held

    @property
    def missing(self) -> str:
        """How many are not, in words."""
        return f"{self.held.left} of {self.grid.count} parts are missing"

    def end_calls(self, but: PushCall | None = None) -> None:
        """End what they wait for."""
        for call in self.calls.values():
            if call is not but:
                call.patience.cut()
