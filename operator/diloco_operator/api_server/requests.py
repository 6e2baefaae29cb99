"""One request to an API server: what it is, how it is sent, and what may come back.

Nothing is retried here. Whatever goes wrong is one of the errors of `errors`.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from diloco_operator.api_server.errors import ApiError, Call, TooLongError, UnavailableError, of_exception, of_text
from diloco_operator.api_server.kinds import Object
from diloco_operator.api_server.limits import Limits
from diloco_operator.api_server.transport import Transport

Query = list[tuple[str, str]]

JSON: Final = "application/json"
_LARGE_BYTES: Final = 1 << 20
"""Answers above this are read one at a time: parsed, each takes several times as much memory."""


def _nothing(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class RequestHooks:
    """Callbacks that observe requests and can prevent writes."""

    answered: Callable[[Call, int, float], None] = _nothing
    """Called after each request with its HTTP code (0: no answer) and the seconds it took."""
    before_write: Callable[[], None] = _nothing
    """Called before each write; raises if this process may no longer write."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request, before it is sent."""

    call: Call
    method: str
    path: str
    query: Query = field(default_factory=list)
    body: Any = None
    content_type: str = JSON
    accept: str = JSON
    timeout: aiohttp.ClientTimeout | None = None
    """None: as the limits say."""


class Requests:
    """Sends requests to one API server."""

    def __init__(self, transport: Transport, hooks: RequestHooks, limits: Limits) -> None:
        self._transport = transport
        self._hooks = hooks
        self._limits = limits
        self._large = asyncio.Lock()

    async def json(self, request: Request) -> Object:
        """The object that the server answers."""
        response = await self.send(request)
        try:
            return parsed(request.call, await self._body(request.call, response))
        finally:
            response.release()

    async def _body(self, call: Call, response: aiohttp.ClientResponse) -> bytes:
        most, reading, body = self._limits.answer_bytes, object(), bytearray()
        try:
            async with AsyncExitStack() as turn:
                while piece := await part(call, response.content.readany()):
                    if len(body) <= _LARGE_BYTES < len(body) + len(piece):
                        await turn.enter_async_context(self._large)
                    body += piece
                    if len(body) > most:
                        response.close()
                        raise TooLongError(call, f"the answer is longer than {most >> 20} MiB")
                    if not self._holds(reading, len(body)):
                        response.close()
                        raise UnavailableError(call, "there is no room for the answer")
        finally:
            self._holds(reading, 0)
        return bytes(body)

    async def lines(self, call: Call, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes | None]:
        """The lines of an answer as they come; None for one that is too long, of which nothing is kept."""
        most, reading, line, too_long = self._limits.line_bytes, object(), bytearray(), False
        try:
            while piece := await part(call, response.content.readany()):
                *ends, rest = piece.split(b"\n")
                for end in ends:
                    yield None if too_long or len(line) + len(end) > most else bytes(line + end)
                    line.clear()
                    too_long = False
                line += rest
                if len(line) > most or not self._holds(reading, len(line)):
                    line.clear()
                    too_long = True
            if line:
                yield bytes(line)
        finally:
            self._holds(reading, 0)

    def _holds(self, reading: object, size: int) -> bool:
        return self._limits.share is None or self._limits.share.hold(reading, size)

    async def send(self, request: Request) -> aiohttp.ClientResponse:
        """The answer, once its head has come; the caller closes it."""
        if request.method != "GET":
            self._hooks.before_write()
        started = time.monotonic()
        code = 0
        timeout = request.timeout or self._limits.within()
        try:
            sent = self._transport.request(
                request.method,
                f"{request.path}?{urlencode(request.query)}" if request.query else request.path,
                {"Accept": request.accept, "Content-Type": request.content_type},
                request.body,
                timeout,
            )
            response: aiohttp.ClientResponse = await part(request.call, sent)
            code = response.status
        finally:
            self._hooks.answered(request.call, code, time.monotonic() - started)
        if code < HTTPStatus.MULTIPLE_CHOICES:
            return response
        try:
            text = (await self._body(request.call, response)).decode(errors="replace")
        except ApiError:
            text = ""
        finally:
            response.release()
        raise of_text(request.call, code, text, response.headers.get("Retry-After"))


async def part(call: Call, awaited: Awaitable[Any]) -> Any:
    """What a part of a request results in, with its errors as this package's."""
    try:
        return await awaited
    except (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError, ValueError, EOFError) as error:
        # HttpProcessingError: of aiohttp's reader, whose errors are not all ClientErrors. ValueError: a proxy's page in
        # no known encoding.
        raise of_exception(call, error) from error


def parsed(call: Call, text: bytes) -> Object:
    """The object that a text holds."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        # A proxy's page, or a part of an object from a server that stopped.
        raise UnavailableError(call, "the answer is not a JSON object")
    return value
