"""The calls of a transfer: several, on as many connections, that share one payload.

A call that breaks is begun again at growing pauses; the others go on meanwhile. A transfer fails when every call is
broken for some seconds, when the syncer refuses it, or at its deadline. Everything is on one event loop.
"""

import asyncio
import itertools
import time
from typing import Any, Final

import grpc

from diloco.wire.channel import FIRST_LANE, ONE_PART, SERVICE
from diloco.wire.client.lanes import Lanes
from diloco.wire.errors import DeadlineError, UnavailableError, WireError, error_of

_BROKEN_SECONDS: Final = 3.0
"""With every call broken for so long, the transfer fails (ours): the caller knows whether it is still wanted."""
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 1.0


class Calls:
    """The calls of one transfer, kept going until it has a result."""

    def __init__(self, lanes: Lanes, method: str, *, one_part: bool) -> None:
        """``one_part``: of which the payload is: it goes in one call, on a connection of its own."""
        self._lanes = lanes
        self._one_part = one_part
        self._method = f"/{SERVICE}/{method}"
        self._numbers = itertools.count()
        self._answered_at = time.monotonic()
        self._cause: WireError | None = None
        """What ended the first call since the latest answer."""
        self._working: set[int] = set()
        """Calls that have been answered and go on."""
        self._unanswered: dict[int, int] = {}
        """The other calls, and the connection of each."""
        self._result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._left: Any = None
        """The call that is not cancelled with the others, as there is something left to do on it."""

    async def run(self, connections: int, seconds: float) -> Any:
        """Make a call on each of so many connections until there is a result, which has so many seconds.

        Raises:
            WireError: the transfer failed.
        """
        lanes = (ONE_PART,) if self._one_part else range(FIRST_LANE, FIRST_LANE + connections)
        tasks = [asyncio.create_task(self._keep_calling(lane)) for lane in lanes]
        try:
            async with asyncio.timeout(seconds):
                return await self._result
        except TimeoutError:
            # gRPC leaves a silent connection only after a minute, and what stands in between may keep it open.
            for connection in self._unanswered.values():
                self._lanes.leave(connection)
            raise DeadlineError(f"it took longer than {seconds:g} s") from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin_call(self, channel: Any) -> Any:
        """Begin a call on a connection."""
        raise NotImplementedError

    async def _call(self, call: Any, number: int) -> None:
        """One call of several, from its beginning to its end."""
        raise NotImplementedError

    async def _call_for_one_part(self, call: Any, number: int) -> None:
        """The only call, from its beginning to its end."""
        raise NotImplementedError

    def _answered(self, number: int) -> None:
        """Note that the syncer has answered a call."""
        self._answered_at = time.monotonic()
        self._cause = None
        self._working.add(number)
        self._lanes.serving[self._unanswered.pop(number)] += 1

    def _done(self, result: Any) -> None:
        if not self._result.done():
            self._result.set_result(result)

    def _failed(self, error: Exception) -> None:
        if not self._result.done():
            self._result.set_exception(error)

    async def _keep_calling(self, connection: int) -> None:
        pause_seconds = _FIRST_PAUSE_SECONDS
        # A cancellation may end as a broken call: gRPC hides it from a call whose connection is being made.
        while not self._result.done():
            number = next(self._numbers)
            self._unanswered[number] = connection
            began = time.monotonic()
            try:
                await self._one_call(connection, number)
                error: WireError = UnavailableError("the syncer ended the call")
            except WireError as wire_error:
                error = wire_error
            except Exception as bug:  # noqa: BLE001  # also of the caller's functions; they end the transfer
                self._failed(bug)
                return
            finally:
                was_answered = number in self._working
                self._working.discard(number)
                self._lanes.serving[connection] -= was_answered
                self._unanswered.pop(number, None)
            if not error.retryable:
                self._failed(error)
                return
            self._cause = self._cause or error
            broken_since = max(self._answered_at, began) if was_answered else self._answered_at
            if not self._working and time.monotonic() - broken_since >= _BROKEN_SECONDS:
                self._failed(self._cause)  # which says more than that nobody is there now
                return
            pause_seconds = _FIRST_PAUSE_SECONDS if was_answered else min(_LONGEST_PAUSE_SECONDS, 2 * pause_seconds)
            await asyncio.sleep(pause_seconds)

    async def _one_call(self, connection: int, number: int) -> None:
        call = self._begin_call(self._lanes.channel(connection))
        try:
            await (self._call_for_one_part if self._one_part else self._call)(call, number)
        except grpc.aio.AioRpcError as error:
            raise error_of(error.code(), error.details()) from None
        except asyncio.InvalidStateError:  # written to a call that has ended
            raise error_of(await call.code(), await call.details()) from None
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise UnavailableError("the connection was silent") from None  # another transfer has left it
        finally:
            if call is not self._left:
                call.cancel()


def is_cancelled() -> bool:
    """Whether the current task is. A local variable for it would keep the task's calls, and so their connections."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
