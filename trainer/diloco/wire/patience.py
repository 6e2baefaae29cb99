"""How long a call on the server waits for its peer, and how somebody else cuts that short.

It must not know what is waited for.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Patience:
    """Of one call. Used on the event loop."""

    def __init__(self, seconds: float) -> None:
        """Wait for ``seconds`` at a time."""
        self._seconds = seconds
        self._timeout: asyncio.Timeout | None = None
        self.cut_short = False

    def cut(self) -> None:
        """Whatever the call waits for, now or later, is not waited for any more."""
        self.cut_short = True
        self._reschedule(0.0)

    def renew(self) -> None:
        """Something came: wait as long again for what is next."""
        if not self.cut_short:
            self._reschedule(self._seconds)

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Raise TimeoutError in whatever is awaited inside, once patience is over."""
        async with asyncio.timeout(0.0 if self.cut_short else self._seconds) as self._timeout:
            yield

    def _reschedule(self, seconds: float) -> None:
        if self._timeout is not None:
            with contextlib.suppress(RuntimeError):  # it is over already
                self._timeout.reschedule(asyncio.get_running_loop().time() + seconds)
