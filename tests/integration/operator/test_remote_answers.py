"""What a server that only claims to be an API server sends: it costs no more than that cluster, and is not repeated."""

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from diloco_operator import labels
from diloco_operator.cluster.api import Api
from diloco_operator.cluster.cache import Cache
from diloco_operator.cluster.inline_client import Address, InlineClient
from diloco_operator.cluster.kinds import CONFIG_MAP, STATEFUL_SET
from diloco_operator.cluster.limits import REMOTE
from diloco_operator.clusters.kubeconfig import parse
from diloco_operator.clusters.remote import MOST_BYTES
from diloco_operator.clusters.session import Session, Surroundings
from diloco_operator.clusters.state import ClusterSeen, ClusterState
from testbed.api_server.certificates import Authority
from tests.support.closed_loop import run_until_closed
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


async def seen_at(config: dict[str, Any], holds: Callable[[ClusterSeen], bool]) -> ClusterSeen:
    """How the cluster is seen once `holds`."""
    read = parse(text(config))
    client = InlineClient(Address(read.server, authority=read.authority, token=read.token))
    around = Surroundings(
        "home/far", "", lambda _: None, lambda: None, lambda: NOW, HandClock(), lambda: 0.0, probe_seconds=0.2
    )
    cache = Cache(labels.JOB, MOST_BYTES)
    session = Session(read, Api(client, labels.FIELD_MANAGER, None, REMOTE), cache, around)
    running = asyncio.create_task(session.run())
    try:
        async with asyncio.timeout(60):
            while not holds(session.seen):  # noqa: ASYNC110 # it may turn on what the server was asked
                await asyncio.sleep(0.01)
        return session.seen
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()


def outcome(
    handler: Handler, folder: Path, holds: Callable[[ClusterSeen], bool] = lambda seen: seen.settled
) -> ClusterSeen:
    async def main() -> ClusterSeen:
        async with serving(handler, folder) as config:
            return await seen_at(config, holds)

    return run_until_closed(main())


def test_a_redirection_is_not_followed(tmp_path: Path) -> None:
    asked: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=302, headers={"Location": f"https://{request.host}/{THEIRS}"})

    seen = outcome(elsewhere, tmp_path)
    assert seen.state is ClusterState.UNREACHABLE
    assert seen.message.endswith("answers with HTTP 302 (Found)")
    assert set(asked) == {"/version"}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, THEIRS),
        (200, f'["{THEIRS}"]'),
        (200, f'{{"major": "{THEIRS}"}}'),
        (200, "[" * 100_000),
        (404, THEIRS),
        (418, THEIRS),
        (500, THEIRS),
    ],
    ids=["text", "list", "no version", "deep", "404", "418", "500"],
)
def test_what_is_no_api_server_is_away_and_not_quoted(status: int, body: str, tmp_path: Path) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    seen = outcome(handler, tmp_path)
    assert seen.state is ClusterState.UNREACHABLE
    assert THEIRS not in seen.message


def test_an_endless_answer_is_cut_off(tmp_path: Path) -> None:
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

    seen = outcome(endless, tmp_path)
    assert seen.state is ClusterState.UNREACHABLE
    assert REMOTE.answer_bytes is not None
    assert sent < (REMOTE.answer_bytes >> 20) + 64


@pytest.mark.parametrize(
    "event",
    [
        b'{"type": "ADDED", "object": {}}\n',
        b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": "2"}}}\n',
        b'{"type": "ADDED", "object": {"metadata": {"resourceVersion": "2", "namespace": [], "name": {}}}}\n',
        b'{"type": "ADDED"}\n',
        b'{"type": "ERROR", "object": {"code": "x"}}\n',
        b'{"type": 5, "object": []}\n',
    ],
    ids=["no metadata", "no name", "no text", "no object", "no code", "no type"],
)
def test_a_watch_that_makes_no_sense_ends_no_other(
    event: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/version":
            return web.json_response(VERSION)
        if "watch" not in request.query:
            return web.json_response(LIST)
        answer = web.StreamResponse()
        await answer.prepare(request)
        if request.path.endswith(CONFIG_MAP.plural):
            await answer.write(event)
        await asyncio.sleep(3600)
        return answer

    with caplog.at_level(logging.DEBUG):
        seen = outcome(handler, tmp_path, lambda seen: seen.state is ClusterState.UNSUITABLE)
    assert seen.message.endswith("sends configmaps that cannot be read")
    assert TOKEN not in caplog.text


def served(items: Any) -> Handler:
    """A server whose list of StatefulSets holds these items, and whose other lists are empty."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/version":
            return web.json_response(VERSION)
        if "watch" not in request.query:
            return web.json_response({**LIST, "items": items if request.path.endswith(STATEFUL_SET.plural) else []})
        answer = web.StreamResponse()
        await answer.prepare(request)
        await asyncio.sleep(3600)
        return answer

    return handler


def a_set(**fields: Any) -> dict[str, Any]:
    own = {labels.JOB: "demo"}
    metadata = {"name": "a", "namespace": NAMESPACE, "uid": "u", "resourceVersion": "1", "labels": own}
    return {"metadata": metadata, "spec": {"template": {"spec": {}}}, "status": {}, **fields}


@pytest.mark.parametrize(
    "item",
    [
        a_set(metadata={**a_set()["metadata"], "name": f"../{THEIRS}"}),
        a_set(metadata={**a_set()["metadata"], "namespace": THEIRS}),
        a_set(metadata={**a_set()["metadata"], "labels": {labels.JOB: "x" * 100_000}}),
        a_set(metadata={**a_set()["metadata"], "ownerReferences": THEIRS}),
        a_set(status={"replicas": THEIRS, "readyReplicas": "2"}),
        a_set(spec=THEIRS),
        a_set(kind=THEIRS),
        [THEIRS],
    ],
    ids=["name", "namespace", "label", "owners", "counts", "spec", "kind", "no object"],
)
def test_an_object_that_no_api_server_sends_is_not_let_in(
    item: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = outcome(served([a_set(), item]), tmp_path)
    assert seen.state is ClusterState.UNSUITABLE
    assert seen.message.endswith("sends statefulsets.apps that cannot be read")
    assert seen.unlisted == {"StatefulSet"}
    assert THEIRS not in caplog.text


def test_an_object_that_a_server_may_send_is_let_in(tmp_path: Path) -> None:
    times: dict[str, Any] = {"creationTimestamp": "not a time at all", "managedFields": None, "ownerReferences": []}
    odd = a_set(metadata={**a_set()["metadata"], **times, "annotations": {"a": "b" * 200_000}})
    assert outcome(served([odd]), tmp_path).state is ClusterState.READY


def test_more_objects_than_are_kept_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    large = "x" * (MOST_BYTES // 50)

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/version":
            return web.json_response(VERSION)
        if "watch" not in request.query:
            return web.json_response(LIST)
        answer = web.StreamResponse()
        await answer.prepare(request)
        for number in range(60 if request.path.endswith(CONFIG_MAP.plural) else 0):
            metadata = {**a_set()["metadata"], "name": f"a{number}", "annotations": {"a": large}}
            event = {"type": "ADDED", "object": {"metadata": metadata}}
            await answer.write(json.dumps(event).encode() + b"\n")
        await asyncio.sleep(3600)
        return answer

    seen = outcome(handler, tmp_path, lambda seen: seen.state is ClusterState.UNSUITABLE)
    assert seen.unlisted == {"ConfigMap"}
    assert "TooMuchError" in caplog.text


def test_a_list_without_an_end_is_cut_off(tmp_path: Path) -> None:
    pages = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal pages
        if request.path == "/version":
            return web.json_response(VERSION)
        pages += request.path.endswith(CONFIG_MAP.plural)
        following = "more" if request.path.endswith(CONFIG_MAP.plural) else ""
        return web.json_response({**LIST, "metadata": {"resourceVersion": "1", "continue": following}})

    seen = outcome(handler, tmp_path, lambda _: pages >= (REMOTE.most_pages or 0))
    assert not seen.settled


def test_a_port_that_speaks_no_tls_is_away(tmp_path: Path) -> None:
    async def main() -> ClusterSeen:
        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(THEIRS.encode())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            authority = Authority(tmp_path).certificate
            return await seen_at(kubeconfig(authority, f"https://127.0.0.1:{port}"), lambda seen: seen.settled)

    seen = run_until_closed(main())
    assert seen.state is ClusterState.UNREACHABLE
    assert "TLS" in seen.message
    assert THEIRS not in seen.message


def test_a_name_that_does_not_resolve_is_away(tmp_path: Path) -> None:
    authority = Authority(tmp_path).certificate
    config = kubeconfig(authority, "https://nowhere.invalid")
    seen = run_until_closed(seen_at(config, lambda seen: seen.settled))
    assert seen.state is ClusterState.UNREACHABLE
    assert seen.message.endswith("the host name does not resolve")
