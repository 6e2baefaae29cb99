"""How the commands of ``diloco cluster`` reach an API server."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from diloco_operator.api_server.api import Selection
from diloco_operator.api_server.errors import UnavailableError
from diloco_operator.api_server.kinds import SECRET
from diloco_operator.commands.shared import MOST_PAGES, access
from testbed.api_server.kubeconfigs import kubeconfig


def test_a_server_that_always_names_a_next_page_is_not_followed_on(tmp_path: Path) -> None:
    asked = 0

    async def page(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.json_response({"metadata": {"continue": "more", "resourceVersion": "1"}, "items": []})

    async def main() -> None:
        app = web.Application()
        app.add_routes([web.get("/api/v1/secrets", page)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        file = tmp_path / "kubeconfig"
        file.write_text(json.dumps(kubeconfig({"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}, {})))
        async with access(file, None) as found:
            with pytest.raises(UnavailableError, match=f"the list has more than {MOST_PAGES} pages"):
                await found.api.items(Selection(SECRET))
        await runner.cleanup()

    asyncio.run(main())
    assert asked == MOST_PAGES
