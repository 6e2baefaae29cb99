import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from diloco_operator.api_server.api import Api, Selection
from diloco_operator.api_server.kinds import SECRET


class Client:
    """A server that answers when it is told to, and then sends nothing more."""

    def __init__(self) -> None:
        self.answers = asyncio.get_running_loop().create_future()
        self.closed = False

    async def request(self, *_: Any) -> Any:
        await self.answers

        def close() -> None:
            self.closed = True

        silent = SimpleNamespace(readany=asyncio.get_running_loop().create_future)
        return SimpleNamespace(status=200, content=silent, close=close)


@pytest.mark.parametrize("turns", range(6))
def test_a_watch_that_begins_while_it_is_cancelled_ends(turns: int) -> None:
    async def main() -> None:
        client: Any = Client()
        watching = asyncio.create_task(anext(Api(client, "m").watch(Selection(SECRET, "ns"), "1")))
        for _ in range(5):
            await asyncio.sleep(0)
        client.answers.set_result(None)
        for _ in range(turns):
            await asyncio.sleep(0)
        watching.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert watching.cancelled()

    asyncio.run(main())
