"""A time limit for a call on the server that waits for its peer, which other code can cut short."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Patience:
    """The time limit of one call. Used on the event loop."""

    def __init__(self, seconds: float) -> None:
        """Wait for at most ``seconds`` at a time."""
        self._seconds = seconds
        self._timeout: asyncio.Timeout | None = None
        self.cut_short = False

    def cut(self) -> None:
        """End the call's current or next wait now."""
        self.cut_short = True
        self._reschedule(0.0)

    def renew(self) -> None:
        """Restart the time limit, because something came."""
        if not self.cut_short:
            self._reschedule(self._seconds)

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Raise TimeoutError in whatever is awaited inside when the time is up."""
        async with asyncio.timeout(0.0 if self.cut_short else self._seconds) as self._timeout:
            yield

    def _reschedule(self, seconds: float) -> None:
        if self._timeout is not None:
            with contextlib.suppress(RuntimeError):  # it has already expired
                self._timeout.reschedule(asyncio.get_running_loop().time() + seconds)
