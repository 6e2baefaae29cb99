"""Asks a job's syncer for its ``/status``, with one bounded GET.

The result is always a value: a syncer that does not answer, or whose answer makes no sense, is a fact about the job
and not an error of the operator.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Final

import aiohttp
from pydantic import ValidationError

from diloco_operator.decide.observed import SyncerAway, SyncerStatusView
from diloco_operator.jobs.jobs import JobKey
from diloco_operator.manifests.common import HTTP_PORT

TIMEOUT_SECONDS: Final = 3.0
LONGEST_ANSWER_BYTES: Final = 8 << 20
"""The status of a thousand learners takes half a mebibyte."""
AT_ONCE: Final = 16


def status_url(address: str) -> str:
    """The URL of the ``/status`` of a syncer whose Service has this address. No name has to be looked up for it."""
    return f"http://{f'[{address}]' if ':' in address else address}:{HTTP_PORT}/status"


def new_session() -> aiohttp.ClientSession:
    """A session for a `SyncerClient`, which makes a new connection for each request.

    A kept connection would stay with the peer it was made to, which may be the wrong one: until a Service's rules are
    in place on this node, its address leads out of the cluster, or to a pod that had it before.
    """
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), trust_env=False)


class SyncerClient:
    """Requests the status of syncers, a bounded number at once."""

    def __init__(self, session: aiohttp.ClientSession, url_of: Callable[[str], str] = status_url) -> None:
        """The caller closes `session`."""
        self._session = session
        self._url_of = url_of
        self._free = asyncio.Semaphore(AT_ONCE)

    async def ask(self, job: JobKey, address: str) -> SyncerStatusView | SyncerAway:
        """The status of a job's syncer, or why there is none, in a text that stays the same while the cause does.

        `address` is that of the syncer's Service.
        """
        async with self._free:
            try:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    body = await self._get(self._url_of(address))
            except TimeoutError:
                return SyncerAway(f"no answer within {TIMEOUT_SECONDS:.0f} s")
            except aiohttp.ClientConnectorError as error:
                # The error's own text contains an address, which may change.
                number = error.os_error.errno
                return SyncerAway(f"cannot connect: {os.strerror(number) if number else 'no route'}")
            except aiohttp.ClientError as error:
                return SyncerAway(f"invalid answer: {type(error).__name__}")
        if isinstance(body, SyncerAway):
            return body
        return _understood(job, body)

    async def _get(self, url: str) -> bytes | SyncerAway:
        async with self._session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                return SyncerAway(f"answered with HTTP {response.status}")
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > LONGEST_ANSWER_BYTES:
                    return SyncerAway(f"its /status is larger than {LONGEST_ANSWER_BYTES >> 20} MiB")
            return bytes(body)


def _understood(job: JobKey, body: bytes) -> SyncerStatusView | SyncerAway:
    try:
        view = SyncerStatusView.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the answer"
        return SyncerAway(f"its /status is invalid: {field}: {first['msg']}")
    if view.job != job.name:
        return SyncerAway(f"it answers for another job, {view.job[:63]!r}")
    return view
