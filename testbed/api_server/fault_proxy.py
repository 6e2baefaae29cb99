"""A proxy in front of an API server that answers in its place, drops its answers or cuts them off, as a test requests.

It listens without TLS and forwards requests as the user of a kubeconfig. Requests that match no fault pass unchanged,
watches event by event.
"""

import asyncio
import re
import ssl
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml
from aiohttp import web
from yarl import URL

from testbed.api_server.kubeconfigs import kubeconfig

_PATIENCE_SECONDS = 30.0
_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "host"}


@dataclass
class Fault:
    """What happens to the next requests whose ``METHOD PATH?QUERY`` matches."""

    pattern: str
    times: int = 1
    """A negative number: all."""
    code: int = 500
    """Sent as the answer without a request to the server; 0: the connection is closed without an answer."""
    reason: str = "InternalError"
    headers: Mapping[str, str] = field(default_factory=dict)
    after_asking: bool = False
    """The request reaches the server, and its answer is dropped."""
    struck: int = 0

    def takes(self, request: str) -> bool:
        if self.struck == self.times or re.search(self.pattern, request) is None:
            return False
        self.struck += 1
        return True


class FaultProxy:
    """Proxies requests within a ``with``."""

    def __init__(self, to: Path, directory: Path) -> None:
        """``to``: a kubeconfig."""
        config = yaml.safe_load(to.read_text(encoding="utf-8"))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._target = cluster["server"]
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._tls.load_cert_chain(user["client-certificate"], user["client-key"])
        self._faults: list[Fault] = []
        self.requests: list[str] = []
        """``METHOD PATH?QUERY`` of every request, whether it met a fault or not."""
        self._streams: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.kubeconfig = directory / "proxy.kubeconfig"

    def fault(self, pattern: str, **how: Any) -> Fault:
        """Make matching requests fail; see ``Fault``. The first fault that matches counts."""
        fault = Fault(pattern, **how)
        self._faults.append(fault)
        return fault

    def mend(self) -> None:
        self._faults = []

    def cut(self) -> None:
        """Break every request under way, watches above all."""
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._streams])

    def asked(self, pattern: str) -> int:
        """Number of requests so far that match."""
        return sum(re.search(pattern, request) is not None for request in list(self.requests))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._up.wait(_PATIENCE_SECONDS), "the proxy does not come up"
        return self

    def __exit__(self, *_: object) -> None:
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_PATIENCE_SECONDS)

    def _run(self) -> None:
        """Serve, and end what is left: a connection that is just being made would be met by a later test."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        app = web.Application(client_max_size=1 << 25)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        config = kubeconfig({"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}, {})
        self.kubeconfig.write_text(yaml.safe_dump(config), encoding="utf-8")
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._session:
            self._up.set()
            await self._stop.wait()
            for task in self._streams:
                task.cancel()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        asked = f"{request.method} {request.path_qs}"
        self.requests.append(asked)
        fault = next((fault for fault in self._faults if fault.takes(asked)), None)
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            if fault is None:
                return await self._pass(request)
            if fault.after_asking:
                async with self._asked(request) as answer:
                    await answer.read()
            if fault.code == 0:
                _close(request)
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": fault.code}
            body = {**status, "reason": fault.reason, "message": f"{fault.reason} for a test"}
            return web.json_response(body, status=fault.code or 500, headers=dict(fault.headers))
        except (asyncio.CancelledError, aiohttp.ClientError, ConnectionError):
            _close(request)
            return web.Response(status=502)
        finally:
            self._streams.discard(task)

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        async with self._asked(request) as answer:
            headers = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
            passed = web.StreamResponse(status=answer.status, headers=headers)
            try:
                await passed.prepare(request)
                async for piece in answer.content.iter_any():
                    await passed.write(piece)
                await passed.write_eof()
            finally:
                # Broken off: a TLS farewell would outlive this loop.
                if answer.connection is not None and answer.connection.transport is not None:
                    answer.connection.transport.abort()
            return passed

    @asynccontextmanager
    async def _asked(self, request: web.Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """The server's answer to a request."""
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        url, body = URL(f"{self._target}{request.raw_path}", encoded=True), await request.read()
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.request(
            request.method, url, data=body or None, headers=headers, timeout=timeout
        ) as answer:
            yield answer


def _close(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()
