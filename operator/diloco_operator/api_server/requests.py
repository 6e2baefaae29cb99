"""One request to an API server: what it is, how it is sent, and what may come back.

Nothing is retried here. Whatever goes wrong is one of the errors of `errors`.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp

from diloco_operator.api_server.errors import ApiError, Call, UnavailableError, of_exception, of_text
from diloco_operator.api_server.kinds import Object
from diloco_operator.api_server.limits import Limits
from diloco_operator.api_server.transport import Transport

Query = list[tuple[str, str]]

JSON: Final = "application/json"


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

    async def json(self, request: Request) -> Object:
        """The object that the server answers."""
        response = await self.send(request)
        try:
            return parsed(request.call, await self._body(request.call, response))
        finally:
            response.release()

    async def _body(self, call: Call, response: aiohttp.ClientResponse) -> bytes:
        most, share, reading = self._limits.answer_bytes, self._limits.share, object()
        if most is None:
            return bytes(await part(call, response.read()))
        body = bytearray()
        try:
            while piece := await part(call, response.content.readany()):
                body += piece
                if len(body) > most or (share is not None and not share.hold(reading, len(body))):
                    response.close()
                    raise UnavailableError(call, f"the answer is longer than {most >> 20} MiB, or there is no room")
        finally:
            if share is not None:
                share.hold(reading, 0)
        return bytes(body)

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
    except (aiohttp.ClientError, TimeoutError, OSError, asyncio.IncompleteReadError, ValueError) as error:
        # ValueError: a line longer than the read buffer allows, or text in no known encoding.
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
