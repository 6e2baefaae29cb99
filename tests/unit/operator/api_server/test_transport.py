"""Connections to one API server."""

import asyncio
import ssl

import aiohttp
from aiohttp import web

from diloco_operator.api_server.transport import Server, Transport

WATCHES = 120
"""Of 15 namespaces with eight kinds. aiohttp's own limit is 100 connections."""


def test_many_watches_leave_connections_for_other_requests() -> None:
    ended = asyncio.Event()

    async def watch(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await ended.wait()
        return response

    async def version(_: web.Request) -> web.Response:
        return web.json_response({})

    async def main() -> None:
        app = web.Application()
        app.add_routes([web.get("/watch", watch), web.get("/version", version)])
        runner, timeout = web.AppRunner(app, shutdown_timeout=0.1), aiohttp.ClientTimeout(total=20)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with Transport(Server(url, ssl.create_default_context())) as transport:
            watches = [await transport.request("GET", "/watch", {}, None, timeout) for _ in range(WATCHES)]
            answer = await transport.request("GET", "/version", {}, None, timeout)
            assert {one.status for one in (*watches, answer)} == {200}
            ended.set()
            for one in (*watches, answer):
                await one.read()
        await runner.cleanup()

    asyncio.run(main())
