"""Limits the calls whose first message has not arrived yet, over all peers.

Until the first message is complete, the caller is unknown, and gRPC keeps the part that has arrived: up to one message
for each call. gRPC limits calls per connection and has no limit of its memory that Python can set, so silent calls are
counted here. If there are too many, the oldest one of the connection with most of them is ended; a correct peer sends
its first message at once, on connections of its own, and is not affected.
"""

from collections import Counter
from typing import Any, Final, cast

import grpc

from diloco.wire.call_timeout import Patience
from diloco.wire.errors import DeadlineError, UnavailableError
from diloco.wire.server_context import Context

MOST_STRANGERS: Final = 96
"""Most calls without a first message, over all connections: gRPC may keep about 100 MiB for them."""


class Strangers:
    """All such calls of a server. Owned by the event loop."""

    def __init__(self, seconds: float, most: int = MOST_STRANGERS) -> None:
        """Give each call ``seconds`` for its first message, and allow ``most`` at once."""
        self._seconds = seconds
        self._most = most
        self._waiting: dict[Patience, str] = {}
        """By arrival time: the connection each is on."""
        self.turned_away = 0

    @property
    def waiting(self) -> int:
        """Number of calls without a first message."""
        return len(self._waiting)

    async def first_message(self, context: Context, what: str) -> bytes | None:
        """The first message of a call; None if it ends without one. ``what`` names the expected message, for the error.

        Raises:
            DeadlineError: none came in time.
            UnavailableError: there are too many calls without one.
        """
        patience = Patience(self._seconds)
        self._waiting[patience] = context.peer()
        if len(self._waiting) > self._most:
            self._turn_one_away()
        try:
            async with patience.waiting():
                return await read_message(context)
        except TimeoutError:
            if patience.cut_short:
                raise UnavailableError(
                    f"more than {self._most} calls wait for their first message; retry later"
                ) from None
            raise DeadlineError(f"no {what} came within {self._seconds:g} s") from None
        finally:
            self._waiting.pop(patience, None)

    def _turn_one_away(self) -> None:
        counts = Counter(self._waiting.values())
        most = max(counts.values())
        chosen = next(patience for patience, connection in self._waiting.items() if counts[connection] == most)
        del self._waiting[chosen]
        self.turned_away += 1
        chosen.cut()


async def read_message(context: Context) -> bytes | None:
    """The next message of a call; None if there is none any more."""
    message: Any = await context.read()
    return None if message is grpc.aio.EOF else cast("bytes", message)
