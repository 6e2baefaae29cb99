"""Pulls that learners have posted for versions that are not made yet: each waits for its fragment's next version.

A learner that has answered an ask posts its pull, so that the new version is on its way the moment it is there. What
waits is a coroutine and nothing else, one a learner and fragment at most. It must not know gRPC, payloads or the
engine.
"""

import asyncio
from collections.abc import Callable

from diloco.wire.errors import RefusedError, UnavailableError, WireError


class PostedPulls:
    """All pulls that wait. Owned by the event loop."""

    def __init__(self, patience_seconds: float) -> None:
        """Let none wait longer than ``patience_seconds``."""
        self._patience_seconds = patience_seconds
        self._waiting: dict[int, dict[str, tuple[int, asyncio.Future[None]]]] = {}
        """fragment -> learner -> its incarnation, and what its pull waits for."""
        self._stopped = False

    @property
    def waiting(self) -> int:
        """Pulls that wait now."""
        return sum(len(learners) for learners in self._waiting.values())

    async def next_version(self, learner: str, incarnation: int, fragment: int) -> None:
        """Wait until the fragment has its next version. A later pull of the same learner and fragment takes its place.

        Raises:
            RefusedError: it took too long, another pull took its place, or the learner's session is over.
            UnavailableError: the syncer stops.
        """
        if self._stopped:
            raise UnavailableError("the syncer stops")
        made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        learners = self._waiting.setdefault(fragment, {})
        if learner in learners:
            _end(learners[learner][1], RefusedError(f"a later pull of fragment {fragment} has taken its place"))
        learners[learner] = (incarnation, made)
        try:
            async with asyncio.timeout(self._patience_seconds):
                await made
        except TimeoutError:
            raise RefusedError(
                f"the next version of fragment {fragment} was not made in {self._patience_seconds:g} s"
            ) from None
        finally:
            self._forget(fragment, learner, made)

    def made(self, fragment: int) -> None:
        """The fragment has a new version: whoever waits for it is served."""
        for _, made in self._waiting.pop(fragment, {}).values():
            if not made.done():
                made.set_result(None)

    def admitted(self, learner: str, incarnation: int) -> None:
        """From now on only this incarnation of the learner is waited with."""
        self._end_sessions(learner, lambda waiting: waiting != incarnation)

    def session_over(self, learner: str, incarnation: int) -> None:
        """This incarnation of the learner waits for nothing any more."""
        self._end_sessions(learner, lambda waiting: waiting == incarnation)

    def stop(self) -> None:
        """Let nobody wait any more: the syncer stops."""
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
            if not learners:
                del self._waiting[fragment]


def _end(made: "asyncio.Future[None]", error: WireError) -> None:
    if not made.done():
        made.set_exception(error)
