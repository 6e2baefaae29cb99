"""Watches against a real HTTP server, whose answers the client's own reader reads."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from diloco.runtime.backoff import Backoff
from diloco_operator import labels
from diloco_operator.api_server.api import Api, Selection
from diloco_operator.api_server.cache import Cache, GroupKey
from diloco_operator.api_server.errors import Call, GoneError, UnansweredError
from diloco_operator.api_server.kinds import CONFIG_MAP, SECRET
from diloco_operator.api_server.transport import Server, Transport
from diloco_operator.api_server.watches import Watch
from diloco_operator.jobs.observe.places import kept_at_home
from diloco_operator.shares import Room, Share
from tests.support.closed_loop import until
from tests.support.virtual_time import in_virtual_time

MIB = 1 << 20
OWNER = {"apiVersion": "diloco.dev/v1alpha1", "kind": "DiLoCoJob", "name": "job", "uid": "u", "controller": True}


def config_map(
    name: str, version: int, size: int = 10, *, namespace: str = "tenant", owned: bool = True
) -> dict[str, Any]:
    owners = {"ownerReferences": [OWNER]} if owned else {}
    own = {"name": name, "namespace": namespace, "resourceVersion": str(version), "labels": {labels.JOB: "job"}}
    return {"metadata": {**own, **owners}, "data": {"a": "x" * size}}


@dataclass
class Lists:
    """ConfigMaps of an API server: lists by pages, and one watch at a time."""

    there: list[dict[str, Any]] = field(default_factory=list)
    events: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)
    """None: the watch ends."""
    pages: list[int] = field(default_factory=list)
    """The number of objects that each page was asked for."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return self._page(int(request.query["limit"]), int(request.query.get("continue", 0)))
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):
            while (event := await self.events.get()) is not None:
                await response.write(json.dumps(event).encode() + b"\n")
        return response

    def _page(self, limit: int, start: int) -> web.Response:
        self.pages.append(limit)
        more = str(start + limit) if start + limit < len(self.there) else ""
        metadata = {"resourceVersion": "100", "continue": more}
        return web.json_response({"metadata": metadata, "items": self.there[start : start + limit]})

    def tell(self, item: dict[str, Any], event: str = "ADDED") -> None:
        self.events.put_nowait({"type": event, "object": item})


@dataclass
class Watched:
    """A watch of that server."""

    lists: Lists
    cache: Cache
    told: list[GroupKey]
    crowded: list[str]
    watch: Watch

    @property
    def names(self) -> list[str]:
        return sorted(key.name for key, _ in self.cache.everything())


@asynccontextmanager
async def watched(lists: Lists, most_bytes: int = 128 * MIB) -> AsyncIterator[Watched]:
    app = web.Application()
    app.add_routes([web.get("/api/v1/configmaps", lists.answer)])
    runner, room = web.AppRunner(app, shutdown_timeout=0.1), Room(most_bytes)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with Transport(Server(url, ssl.create_default_context())) as transport:
        cache = Cache(labels.JOB, lambda namespace: Share(room, namespace, "objects"))
        told, crowded = list[GroupKey](), list[str]()
        watch = Watch(
            Api(transport, "m"),
            Selection(CONFIG_MAP),
            cache,
            told.append,
            time.monotonic,
            Backoff(0.1, 0.2, lambda: 1.0),
            keep=kept_at_home,
            crowded=crowded.append,
        )
        work = asyncio.create_task(watch.run())
        try:
            yield Watched(lists, cache, told, crowded, watch)
            assert not work.done()
        finally:
            work.cancel()
            await asyncio.wait((work,))
    await runner.cleanup()


def test_an_event_that_is_too_long_is_skipped_and_the_kind_listed_again() -> None:
    async def main() -> None:
        async with watched(Lists()) as seen:
            await until(seen.watch.synced.is_set)
            big = config_map("big", 101, 5 * MIB)
            seen.lists.tell(big)
            seen.lists.tell(config_map("small", 102))
            await until(lambda: seen.names == ["small"])
            assert seen.lists.pages == [500], "the watch has gone on"
            seen.lists.there = [big, config_map("small", 102)]
            seen.lists.events.put_nowait(None)
            await until(lambda: seen.names == ["big", "small"])

    asyncio.run(main())


def test_large_objects_are_listed_in_smaller_pages() -> None:
    async def main() -> None:
        lists = Lists([config_map(f"m{number}", number, MIB) for number in range(40)])
        async with watched(lists) as seen:
            await until(seen.watch.synced.is_set)
            assert len(seen.names) == 40
            assert lists.pages[:3] == [500, 62, 7]
            assert max(lists.pages[2:]) <= 32

    asyncio.run(main())


def test_nothing_is_kept_of_what_no_job_owns_but_its_change_is_told() -> None:
    async def main() -> None:
        lists = Lists([config_map("stranger", 1, owned=False), config_map("ours", 2)])
        async with watched(lists) as seen:
            await until(seen.watch.synced.is_set)
            assert seen.names == ["ours"]
            seen.told.clear()
            lists.tell(config_map("stranger", 103, owned=False), "DELETED")
            await until(lambda: seen.told == [GroupKey("tenant", "job")])
            # One that is owned no longer is forgotten.
            lists.tell(config_map("ours", 104, owned=False), "MODIFIED")
            await until(lambda: seen.names == [])

    asyncio.run(main())


def test_one_namespace_fills_its_share_and_no_more_until_it_has_less() -> None:
    async def main() -> None:
        large = [config_map(f"m{number}", number, MIB) for number in range(20)]
        async with watched(Lists(large), most_bytes=12 * MIB) as seen:
            await until(seen.watch.synced.is_set)
            assert seen.cache.lacks("tenant")
            assert set(seen.crowded) == {"tenant"}
            assert 5 <= len(seen.names) <= 8
            seen.lists.tell(config_map("victims", 120, MIB, namespace="victim"))
            await until(lambda: "victims" in seen.names)
            assert not seen.cache.lacks("victim")
            seen.lists.there = [config_map("victims", 120, MIB, namespace="victim"), large[0]]
            seen.lists.events.put_nowait(None)
            await until(lambda: not seen.cache.lacks("tenant"))
            assert seen.names == ["m0", "victims"]

    asyncio.run(main())


class Failing:
    """Lists, and refuses each watch."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.tried: list[float] = []

    async def pages(self, _: Selection) -> AsyncIterator[dict[str, Any]]:
        yield {"items": [], "metadata": {"resourceVersion": "5"}}

    async def watch(self, *_: object) -> AsyncIterator[dict[str, Any]]:
        self.tried.append(asyncio.get_running_loop().time())
        if self.tried:
            raise self.error
        yield {}


def pauses(error: Exception) -> list[float]:
    async def main() -> list[float]:
        api: Any = Failing(error)
        clock = asyncio.get_running_loop().time
        watch = Watch(api, Selection(SECRET), Cache("x"), lambda _: None, clock, Backoff(1.0, 30.0, lambda: 1.0))
        work = asyncio.create_task(watch.run())
        await asyncio.sleep(200)
        work.cancel()
        await asyncio.wait((work,))
        return [round(later - earlier, 1) for earlier, later in zip(api.tried, api.tried[1:], strict=False)]

    return in_virtual_time(main())


def test_a_watch_that_always_fails_is_tried_at_growing_pauses() -> None:
    call = Call("watch", "secrets")
    assert pauses(UnansweredError(call, "cannot connect"))[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    assert pauses(GoneError(call, "too old"))[:6] == [0.2, 2.0, 4.0, 8.0, 16.0, 30.0]
