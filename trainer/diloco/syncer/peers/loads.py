"""Lets pulls of learners that load the model wait for their turn, which `load_places` decides.

A pull waits for less time than a learner gives a transfer; then it is refused with the learner's place in the line. The
learner tries again and keeps its place.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from diloco.syncer.peers.load_places import LoadPlaces
from diloco.wire.errors import RefusedError

PATIENCE_SECONDS: Final = 10.0
"""A pull waits for its turn at most so long: half of the least time that a learner gives a transfer (ours)."""


class Loads:
    """All learners that load. Owned by the event loop."""

    def __init__(
        self,
        clock: Callable[[], float],
        places: LoadPlaces | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """``clock`` returns seconds and never goes back; ``places``: how many load at the same time."""
        self._clock = clock
        self._places = LoadPlaces() if places is None else places
        self._patience_seconds = patience_seconds
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def in_line(self) -> int:
        """Number of learners that wait for their turn."""
        return self._places.in_line

    def begins(self, learner: str) -> None:
        """Note that a learner was admitted and has fragments to load."""
        self.ends(learner)
        self._places.begin(learner)

    def ends(self, learner: str) -> None:
        """Note that a learner has the model, or that its session is over: nothing of it waits any longer."""
        self._places.end(learner)
        self._wake(learner)
        self._grant()

    def loads(self, learner: str) -> bool:
        """Whether a learner loads the model."""
        return self._places.loads(learner)

    async def turn(self, learner: str) -> None:
        """Wait until a learner may pull a fragment; at once unless it loads and others do.

        Raises:
            RefusedError: its turn has not come yet; it keeps its place in the line.
        """
        if not self._places.must_wait(learner, self._clock()):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(learner, set()).add(turn)
        self._grant()
        try:
            async with asyncio.timeout(self._patience_seconds):
                await turn
        except TimeoutError:
            ahead = self._places.ahead_of(learner)
            raise RefusedError(
                f"many learners load the model at the same time; {ahead} are to go before {learner}: try again"
            ) from None
        finally:
            self._forget(learner, turn)

    def _forget(self, learner: str, turn: "asyncio.Future[None]") -> None:
        waiting = self._waiting.get(learner)
        if waiting is not None:
            waiting.discard(turn)
            if not waiting:
                del self._waiting[learner]

    def _wake(self, learner: str) -> None:
        for turn in self._waiting.pop(learner, ()):
            if not turn.done():
                turn.set_result(None)

    def _grant(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock()
        for learner in self._places.grant(self._waiting, now):
            self._wake(learner)
        free_at = self._places.next_free_at()
        if self._waiting and free_at is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, free_at - now), self._grant)
