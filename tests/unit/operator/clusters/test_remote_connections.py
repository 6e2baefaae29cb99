"""Connections to a cluster are closed, also if the operator stops while a replaced Secret is taken up."""

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from diloco_operator.cluster.inline_client import Address, InlineClient
from diloco_operator.cluster.requests import Seams
from diloco_operator.clusters import remote
from diloco_operator.clusters.home import ClusterKey, HomeSecrets
from diloco_operator.clusters.session import Surroundings
from testbed.api_server.certificates import Authority
from tests.support.kubeconfigs import kubeconfig, text


class Secrets:
    """At home, with another kubeconfig each time that it is replaced."""

    def __init__(self, authority: Path) -> None:
        self._authority = authority
        self.tokens = ["first"]

    async def kubeconfig(self, _: ClusterKey) -> tuple[bytes, str]:
        config = kubeconfig(self._authority, "https://127.0.0.1:1", token=self.tokens[-1])
        return (text(config) if self.tokens[-1] else b"{}"), "uid"

    async def renewed_token(self, _key: ClusterKey, _digest: str) -> None:
        return None


@pytest.mark.parametrize("last", ["third", ""], ids=["by-another-kubeconfig", "by-one-that-cannot-be-used"])
def test_stopped_while_a_secret_is_replaced_it_closes_every_connection(
    last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[InlineClient] = []
    closed: list[InlineClient] = []
    following: list[asyncio.Task[None]] = []
    secrets = Secrets(Authority(tmp_path).certificate)

    class Client(InlineClient):
        def __init__(self, address: Address) -> None:
            super().__init__(address)
            opened.append(self)

        async def close(self) -> None:
            if not following[0].cancelling():
                following[0].cancel()
                await asyncio.sleep(0)
            await super().close()
            closed.append(self)

    async def play() -> None:
        around = Surroundings(
            "far", "a=b", lambda _: None, lambda: None, lambda: datetime.now(UTC), time.monotonic, float
        )
        cluster = remote.RemoteCluster(ClusterKey("ns", "far"), cast("HomeSecrets", secrets), around, Seams())
        following.append(asyncio.create_task(cluster.run()))
        for count, token in enumerate(("second", last), start=1):
            async with asyncio.timeout(30):
                while len(opened) < count:  # noqa: ASYNC110 # it is the code's own state that is awaited
                    await asyncio.sleep(0)
            secrets.tokens.append(token)
            cluster.reread()
        with pytest.raises(asyncio.CancelledError):
            await following[0]

    monkeypatch.setattr(remote, "InlineClient", Client)
    monkeypatch.setattr(remote, "LEAST_SECONDS", 0.0)
    asyncio.run(play())
    assert set(closed) == set(opened)
