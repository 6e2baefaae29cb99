"""What a server that only claims to be an API server sends: it costs no more than that cluster, and is not repeated."""

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from diloco_operator import labels
from diloco_operator.api_server.kinds import CONFIG_MAP, LEASE, STATEFUL_SET
from diloco_operator.api_server.limits import REMOTE
from diloco_operator.api_server.requests import RequestHooks
from diloco_operator.cluster_state import ClusterSeen, ClusterState
from diloco_operator.clusters.home import ClusterKey, HomeSecrets, StoredKubeconfig
from diloco_operator.clusters.kubeconfig import parse
from diloco_operator.clusters.remote import MOST_BYTES, RemoteCluster
from diloco_operator.clusters.session import Holder, Surroundings
from diloco_operator.shares import Room, Share
from testbed.api_server.certificates import Authority
from tests.support.closed_loop import until
from tests.support.hand_clock import HandClock
from tests.support.kubeconfigs import NAMESPACE, TOKEN, kubeconfig, text

NOW = datetime(2026, 1, 2, tzinfo=UTC)
THEIRS = "text-of-the-other-side"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
VERSION = {"major": "1", "minor": "30"}
LIST = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []}


@asynccontextmanager
async def serving(handler: Handler, folder: Path) -> AsyncIterator[dict[str, Any]]:
    """A TLS server on a port of its own; yields the kubeconfig for it."""
    authority = Authority(folder)
    leaf = authority.leaf("server", hosts=["127.0.0.1"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(leaf.certificate, leaf.key)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield kubeconfig(authority.certificate, f"https://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


class Secrets:
    """At home, with one kubeconfig."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = parse(text(config))

    async def kubeconfig(self, _: ClusterKey) -> StoredKubeconfig:
        return StoredKubeconfig(self._config, "digest", "uid")


async def seen_at(
    config: dict[str, Any], holds: Callable[[ClusterSeen], bool], room: Room | None = None
) -> ClusterSeen:
    """How the cluster is seen once `holds`."""
    around = Surroundings(
        *("home/far", "", lambda _: None, lambda: None, lambda: NOW, HandClock(), lambda: 0.0),
        Holder("diloco-home", "this", lambda: 1),
        probe_seconds=0.2,
    )
    share = Share(room or Room(MOST_BYTES), "home", "far")
    secrets = cast("HomeSecrets", Secrets(config))
    remote = RemoteCluster(ClusterKey("home", "far"), secrets, around, RequestHooks(), share)
    running = asyncio.create_task(remote.run())
    try:
        await until(lambda: holds(remote.seen))
        return remote.seen
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def outcome(
    handler: Handler, folder: Path, holds: Callable[[ClusterSeen], bool] = lambda seen: seen.settled
) -> ClusterSeen:
    async with serving(handler, folder) as config:
        return await seen_at(config, holds)


async def test_a_redirection_is_not_followed(tmp_path: Path) -> None:
    asked: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=302, headers={"Location": f"https://{request.host}/{THEIRS}"})

    seen = await outcome(elsewhere, tmp_path)
    assert seen.state is ClusterState.UNREACHABLE
    assert seen.message.endswith("answers with HTTP 302 (Found)")
    assert set(asked) == {"/version"}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, THEIRS),
        (200, f'{{"major": "{THEIRS}"}}'),
        (200, "[" * 100_000),
        (418, THEIRS),
    ],
    ids=["text", "no version", "deep", "418"],
)
async def test_what_is_no_api_server_is_away_and_not_quoted(status: int, body: str, tmp_path: Path) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    seen = await outcome(handler, tmp_path)
    assert seen.state is ClusterState.UNREACHABLE
    assert THEIRS not in seen.message


async def test_an_endless_answer_is_cut_off(tmp_path: Path) -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(request)
        while sent < 1000:
            await answer.write(b" " * (1 << 20))
            sent += 1
            await asyncio.sleep(0)  # a write may return at once although nobody reads any more
        return answer

    seen = await outcome(endless, tmp_path)
    assert seen.state is ClusterState.UNREACHABLE
    assert sent < (REMOTE.answer_bytes >> 20) + 64


async def leased(request: web.Request) -> web.StreamResponse:
    """Requests about a Lease that nobody holds."""
    if request.method == "GET":
        return web.json_response({"kind": "Status", "code": 404, "details": {"name": "x"}}, status=404)
    body = await request.json()
    return web.json_response({**body, "metadata": {**body["metadata"], "uid": "u", "resourceVersion": "1"}})


def served(sets: Sequence[object] = (), said: Iterable[bytes] = ()) -> Handler:
    """A server with these StatefulSets, whose watch of ConfigMaps says this. Its other lists and watches are empty."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/version":
            return web.json_response(VERSION)
        if LEASE.plural in request.path:
            return await leased(request)
        if "watch" not in request.query:
            return web.json_response({**LIST, "items": sets if request.path.endswith(STATEFUL_SET.plural) else []})
        answer = web.StreamResponse()
        await answer.prepare(request)
        for event in said if request.path.endswith(CONFIG_MAP.plural) else ():
            await answer.write(event)
        await asyncio.sleep(3600)
        return answer

    return handler


@pytest.mark.parametrize(
    "event",
    [
        b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": "2", "namespace": [], "name": {}}}}\n',
        b'{"type": "ADDED"}\n',
        b'{"type": "ERROR", "object": {"code": "x"}}\n',
        b'{"type": 5, "object": []}\n',
    ],
    ids=["no text", "no object", "no code", "no type"],
)
async def test_a_watch_that_makes_no_sense_ends_its_session_alone(
    event: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        seen = await outcome(served(said=[event]), tmp_path, lambda seen: seen.state is ClusterState.UNSUITABLE)
    assert seen.message.partition(" sends ")[2].startswith("what cannot be read")
    assert TOKEN not in caplog.text


def a_set(**fields: Any) -> dict[str, Any]:
    own = {labels.JOB: "demo"}
    metadata = {"name": "a", "namespace": NAMESPACE, "uid": "u", "resourceVersion": "1", "labels": own}
    return {"metadata": metadata, "spec": {"template": {"spec": {}}}, "status": {}, **fields}


async def test_an_object_that_no_api_server_sends_is_not_let_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    item = a_set(metadata={**a_set()["metadata"], "name": f"../{THEIRS}"})
    seen = await outcome(served([a_set(), item]), tmp_path, lambda seen: seen.state is ClusterState.UNSUITABLE)
    assert seen.state is ClusterState.UNSUITABLE
    assert seen.message.endswith("sends what cannot be read (statefulsets.apps)")
    assert THEIRS not in caplog.text


@pytest.mark.parametrize(
    "spec",
    [{"leaseDurationSeconds": "never"}, {"leaseDurationSeconds": -1}, {"holderIdentity": {}}, "x"],
)
async def test_a_lease_that_makes_no_sense_is_not_held_and_not_quoted(spec: object, tmp_path: Path) -> None:
    plain = served()

    async def handler(request: web.Request) -> web.StreamResponse:
        if LEASE.plural not in request.path:
            return await plain(request)
        metadata = {"name": request.path.rpartition("/")[2], "namespace": NAMESPACE, "uid": "u", "resourceVersion": "1"}
        if request.method != "GET":
            metadata["name"] = "other"
        annotations = {"diloco.dev/home-version": THEIRS}
        return web.json_response({"metadata": {**metadata, "annotations": annotations}, "spec": spec})

    seen = await outcome(handler, tmp_path)
    assert not seen.takes_writes
    assert THEIRS not in seen.message


async def test_more_objects_than_are_kept_are_refused(tmp_path: Path) -> None:
    large = {"a": "x" * (MOST_BYTES // 50)}
    items = [{"metadata": {**a_set()["metadata"], "name": f"a{number}", "annotations": large}} for number in range(60)]
    events = [json.dumps({"type": "ADDED", "object": item}).encode() + b"\n" for item in items]
    seen = await outcome(served(said=events), tmp_path, lambda seen: seen.state is ClusterState.UNSUITABLE)
    assert "CacheFullError" in seen.message


async def test_objects_of_several_clusters_of_a_namespace_share_its_room(tmp_path: Path) -> None:
    room = Room(1 << 20)
    large = {"a": "x" * (400 << 10)}
    item = {"metadata": {**a_set()["metadata"], "annotations": large}}
    event = json.dumps({"type": "ADDED", "object": item}).encode() + b"\n"
    assert room.hold("home", "another cluster", 400 << 10)
    async with serving(served(said=[event]), tmp_path) as config:
        seen = await seen_at(config, lambda seen: seen.state is ClusterState.UNSUITABLE, room)
        assert "CacheFullError" in seen.message
        assert room.hold("home", "another cluster", 0)
        await seen_at(config, lambda seen: seen.state is ClusterState.READY, room)
    assert room.hold("another namespace", "a cluster", 650 << 10), "nothing is held by a cluster that was let go"


@pytest.mark.parametrize(("group", "assigns"), [("apps", False), ("security.openshift.io", True)])
async def test_a_platform_that_chooses_users_is_known_by_its_groups(tmp_path: Path, group: str, assigns: bool) -> None:
    plain = served()

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/apis":
            return web.json_response({"kind": "APIGroupList", "groups": [{"name": group}]})
        return await plain(request)

    seen = await outcome(handler, tmp_path, lambda seen: seen.state is ClusterState.READY)
    assert seen.assigns_users == assigns


async def test_a_list_without_an_end_is_cut_off(tmp_path: Path) -> None:
    pages = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal pages
        if request.path == "/version":
            return web.json_response(VERSION)
        if "watch" in request.query:
            await asyncio.sleep(3600)
        pages += request.path.endswith(CONFIG_MAP.plural)
        following = "more" if request.path.endswith(CONFIG_MAP.plural) else ""
        return web.json_response({**LIST, "metadata": {"resourceVersion": "1", "continue": following}})

    seen = await outcome(handler, tmp_path, lambda _: pages >= (REMOTE.most_pages or 0))
    assert not seen.settled


async def test_a_port_that_speaks_no_tls_is_away(tmp_path: Path) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(THEIRS.encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        authority = Authority(tmp_path).certificate
        seen = await seen_at(kubeconfig(authority, f"https://127.0.0.1:{port}"), lambda seen: seen.settled)
    assert seen.state is ClusterState.UNREACHABLE
    assert "TLS" in seen.message
    assert THEIRS not in seen.message
