"""Calls that have begun and said nothing yet: few at once, whoever makes them.

Until its first message is there nobody knows whose call it is, and gRPC keeps what has come of that message: up to one
message for each call. gRPC limits calls by connection and has no limit of its memory that Python can set, so those that
keep silent are counted here. Where they are too many, the oldest one of the connection that has most of them ends; an
honest peer says who it is at once, on connections of its own, and is not the one. It must not know what is said.
"""

from collections import Counter
from typing import Any, Final, cast

import grpc

from diloco.wire.errors import DeadlineError, UnavailableError
from diloco.wire.patience import Patience
from diloco.wire.server_context import Context

MOST_STRANGERS: Final = 96
"""Calls without a first message, of all connections together: about 100 MiB of what gRPC may keep for them."""


class Strangers:
    """All such calls of a server. Owned by the event loop."""

    def __init__(self, seconds: float, most: int = MOST_STRANGERS) -> None:
        """Give each ``seconds`` for its first message, and ``most`` a place at once."""
        self._seconds = seconds
        self._most = most
        self._waiting: dict[Patience, str] = {}
        """By the time they came: the connection each is on."""
        self.turned_away = 0

    @property
    def waiting(self) -> int:
        """Calls that have said nothing yet."""
        return len(self._waiting)

    async def first_message(self, context: Context, what: str) -> bytes | None:
        """The first message of a call; None where it ends without one. ``what`` it should be, for the error.

        Raises:
            DeadlineError: none came in time.
            UnavailableError: there are too many calls like this one.
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
    """The next message of a call; None where there is none any more."""
    message: Any = await context.read()
    return None if message is grpc.aio.EOF else cast("bytes", message)
