"""Connections to a cluster are closed, also if the operator stops while a replaced Secret is taken up."""

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from diloco_operator.api_server.requests import RequestHooks
from diloco_operator.api_server.transport import Server, Transport
from diloco_operator.clusters import remote
from diloco_operator.clusters.home import ClusterKey, HomeSecrets, StoredKubeconfig
from diloco_operator.clusters.kubeconfig import parse
from diloco_operator.clusters.session import Holder, Surroundings
from diloco_operator.shares import Room, Share
from testbed.api_server.certificates import Authority
from tests.support.kubeconfigs import kubeconfig, text


class Secrets:
    """At home, with another kubeconfig each time that it is replaced."""

    def __init__(self, authority: Path) -> None:
        self._authority = authority
        self.tokens = ["first"]

    async def kubeconfig(self, _: ClusterKey) -> StoredKubeconfig:
        config = kubeconfig(self._authority, "https://127.0.0.1:1", token=self.tokens[-1])
        return StoredKubeconfig(parse(text(config)), "digest", "uid")


@pytest.mark.parametrize("last", ["second", ""], ids=["by-another-kubeconfig", "by-one-that-cannot-be-used"])
def test_stopped_while_a_secret_is_replaced_it_closes_every_connection(
    last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Transport] = []
    closed: list[Transport] = []
    following: list[asyncio.Task[None]] = []
    secrets = Secrets(Authority(tmp_path).certificate)

    class Counted(Transport):
        def __init__(self, server: Server) -> None:
            super().__init__(server)
            opened.append(self)

        async def close(self) -> None:
            if not following[0].cancelling():
                following[0].cancel()
                await asyncio.sleep(0)
            await super().close()
            closed.append(self)

    async def play() -> None:
        around = Surroundings(
            *("far", "a=b", lambda _: None, lambda: None, lambda: datetime.now(UTC), time.monotonic, float),
            Holder("diloco-home", "this", lambda: 1),
        )
        share = Share(Room(remote.MOST_BYTES), "ns", "far")
        held = cast("HomeSecrets", secrets)
        cluster = remote.RemoteCluster(ClusterKey("ns", "far"), held, around, RequestHooks(), share)
        following.append(asyncio.create_task(cluster.run()))
        async with asyncio.timeout(30):
            while not opened:  # noqa: ASYNC110 # it is the code's own state that is awaited
                await asyncio.sleep(0)
        secrets.tokens.append(last)
        cluster.reread()
        with pytest.raises(asyncio.CancelledError):
            await following[0]
        while closed != opened:  # noqa: ASYNC110 # as above
            await asyncio.sleep(0)

    monkeypatch.setattr(remote, "Transport", Counted)
    monkeypatch.setattr(remote, "LEAST_SECONDS", 0.0)
    asyncio.run(play())
    assert len(opened) == 1
