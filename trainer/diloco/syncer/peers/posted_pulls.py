"""Pulls that learners have posted for versions not made yet: each waits for its fragment's next version.

A learner that has answered a request posts its pull, so that the new version is sent as soon as it exists. A waiting
pull is only a coroutine, at most one per learner and fragment.
"""

import asyncio
from collections.abc import Callable

from diloco.wire.errors import RefusedError, UnavailableError, WireError


class PostedPulls:
    """All waiting pulls. Owned by the event loop."""

    def __init__(self, patience_seconds: float) -> None:
        """No pull waits longer than ``patience_seconds``."""
        self._patience_seconds = patience_seconds
        self._waiting: dict[int, dict[str, tuple[int, asyncio.Future[None]]]] = {}
        """fragment -> learner -> its incarnation, and the future that its pull awaits."""
        self._stopped = False

    @property
    def waiting(self) -> int:
        """Number of waiting pulls."""
        return sum(len(learners) for learners in self._waiting.values())

    async def next_version(self, learner: str, incarnation: int, fragment: int) -> None:
        """Wait until the fragment has its next version. A later pull by the same learner replaces this one.

        Raises:
            RefusedError: it took too long, another pull replaced it, or the learner's session is over.
            UnavailableError: the syncer stops.
        """
        if self._stopped:
            raise UnavailableError("the syncer stops")
        loop = asyncio.get_running_loop()
        made: asyncio.Future[None] = loop.create_future()
        learners = self._waiting.setdefault(fragment, {})
        if learner in learners:
            _end(learners[learner][1], RefusedError(f"a later pull of fragment {fragment} has taken its place"))
        learners[learner] = (incarnation, made)
        late = RefusedError(f"the next version of fragment {fragment} was not made in {self._patience_seconds:g} s")
        patience = loop.call_later(self._patience_seconds, _end, made, late)
        try:
            await made
        finally:
            patience.cancel()
            self._forget(fragment, learner, made)

    def made(self, fragment: int) -> None:
        """Note that the fragment has a new version: pulls that wait for it go on."""
        for _, made in self._waiting.pop(fragment, {}).values():
            if not made.done():
                made.set_result(None)

    def admitted(self, learner: str, incarnation: int) -> None:
        """Let only this incarnation of the learner wait from now on."""
        self._end_sessions(learner, lambda waiting: waiting != incarnation)

    def session_over(self, learner: str, incarnation: int) -> None:
        """End the pulls of this incarnation of the learner."""
        self._end_sessions(learner, lambda waiting: waiting == incarnation)

    def stop(self) -> None:
        """End all pulls: the syncer stops."""
        self._stopped = True
        for learners in self._waiting.values():
            for _, made in learners.values():
                _end(made, UnavailableError("the syncer stops"))

    def _end_sessions(self, learner: str, over: Callable[[int], bool]) -> None:
        for learners in self._waiting.values():
            if learner in learners:
                incarnation, made = learners[learner]
                if over(incarnation):
                    _end(made, RefusedError(f"incarnation {incarnation} of {learner} has no session here"))

    def _forget(self, fragment: int, learner: str, made: "asyncio.Future[None]") -> None:
        learners = self._waiting.get(fragment, {})
        if learner in learners and learners[learner][1] is made:
            del learners[learner]


def _end(made: "asyncio.Future[None]", error: WireError) -> None:
    if not made.done():
        made.set_exception(error)
