"""How long to wait for an API server, and how much to take from it."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from diloco_operator.shares import Share

REQUEST_TIMEOUT_SECONDS: Final = 30.0
PAGE_OBJECTS: Final = 500
"""Objects in a page of a list, as client-go requests."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server. The defaults are for the operator's own cluster."""

    request_seconds: float = REQUEST_TIMEOUT_SECONDS
    """For a whole answer, and for a watch to begin."""
    silence_seconds: float | None = None
    """For a connection, and for any byte of an answer other than a watch's; None: only the whole counts."""
    page_objects: int = PAGE_OBJECTS
    """Objects in a page of a list."""
    most_pages: int | None = None
    """Pages of a list; None: any number."""
    checks_objects: bool = False
    """Whether objects are checked where they come in (`intake`), because the server belongs to others."""
    answer_bytes: int = 16 << 20
    """Bytes of an answer. The largest object, of 1.5 MiB in the server's store, takes 9 MiB as JSON."""
    line_bytes: int = 4 << 20
    """Bytes of an event of a watch. No object that the operator makes takes as much."""
    share: Share | None = None
    """Where bytes of answers that are being read are counted; None: nowhere."""

    def within(self, seconds: float | None = None) -> aiohttp.ClientTimeout:
        """The time limits of a request; `seconds`: for the whole of this one."""
        silence = self.silence_seconds
        return aiohttp.ClientTimeout(total=seconds or self.request_seconds, connect=silence, sock_read=silence)


REMOTE: Final = Limits(
    request_seconds=15.0,
    silence_seconds=5.0,
    page_objects=20,
    most_pages=500,
    checks_objects=True,
    answer_bytes=8 << 20,
)
"""The limits of other clusters, whose servers belong to others and may be far away."""


async def bounded(seconds: float, part: Awaitable[Any]) -> Any:
    """The result of `part`.

    Raises:
        TimeoutError: it takes longer.
    """
    # Before Python 3.12 asyncio.wait_for forgets a cancellation that comes at the moment of the result.
    async with asyncio.timeout(seconds):
        return await part
