"""A Secret is kept while it is used; a renewed token is kept beside its kubeconfig, and used for no other one."""

import asyncio
import base64
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from diloco_operator.api_server.kinds import SECRET, Kind, Object
from diloco_operator.cluster_state import IN_USE
from diloco_operator.clusters.home import ClusterKey, HomeSecrets
from diloco_operator.clusters.kubeconfig import KubeconfigError
from testbed.api_server.certificates import Authority
from tests.support.kubeconfigs import account_token, kubeconfig, text

if TYPE_CHECKING:
    from diloco_operator.api_server.api import Api

KEY = ClusterKey("team", "far")


def token(issued: int, account: str = "diloco-home") -> str:
    since = datetime.fromtimestamp(issued, UTC)
    return account_token(since, since + timedelta(hours=1), f"system:serviceaccount:there:{account}")


class Home:
    """One Secret."""

    def __init__(self, content: bytes) -> None:
        this = {"namespace": "team", "name": "far", "uid": "u1", "resourceVersion": "1"}
        metadata = {**this, "labels": {"diloco.dev/cluster": ""}, "finalizers": ["example.com/other"]}
        self.secret: Object = {"metadata": metadata, "data": {}}
        self.put(content)

    def put(self, content: bytes) -> None:
        self.secret["data"]["kubeconfig"] = base64.b64encode(content).decode()

    async def get(self, kind: Kind, namespace: str, name: str) -> Object:
        assert (kind, namespace, name) == (SECRET, "team", "far")
        return self.secret

    async def overwrite(self, kind: Kind, patch: Object) -> None:
        assert kind is SECRET
        assert {**patch["metadata"], "finalizers": self.finalizers}.items() <= self.secret["metadata"].items()
        self.secret["metadata"] |= patch["metadata"]
        self.secret["data"] |= patch.get("data", {})

    @property
    def finalizers(self) -> list[str]:
        return list(self.secret["metadata"]["finalizers"])


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return Authority(tmp_path).certificate


def held(authority: Path, server: str = "https://far.example", issued: int = 1_700_000_000) -> bytes:
    config: dict[str, Any] = kubeconfig(authority, server, token=token(issued))
    return text(config)


def test_a_renewed_token_is_used_until_the_secret_has_another_kubeconfig(authority: Path) -> None:
    home = Home(held(authority))
    secrets = HomeSecrets(cast("Api", home))

    async def scenario() -> None:
        stored = await secrets.kubeconfig(KEY)
        assert stored.config.token == token(1_700_000_000)
        await secrets.keep_token(KEY, stored, token(1_700_001_800))
        assert set(home.secret["data"]) == {"kubeconfig", "kubeconfig.renewed"}
        again = await secrets.kubeconfig(KEY)
        assert (again.config.token, again.digest) == (token(1_700_001_800), stored.digest)
        home.put(held(authority, "https://elsewhere.example"))
        assert (await secrets.kubeconfig(KEY)).config.token == token(1_700_000_000), "it is not sent to another server"

    asyncio.run(scenario())


def test_a_secret_that_is_used_is_kept_until_it_is_released(authority: Path) -> None:
    home = Home(held(authority))
    secrets = HomeSecrets(cast("Api", home))
    asyncio.run(secrets.kubeconfig(KEY))
    assert home.finalizers == ["example.com/other", IN_USE]
    asyncio.run(secrets.release(home.secret))
    assert home.finalizers == ["example.com/other"]
    home.secret["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert asyncio.run(secrets.kubeconfig(KEY)).deleted
    assert home.finalizers == ["example.com/other"], "an API server refuses another one now"


def test_a_secret_that_loses_its_label_is_released(authority: Path) -> None:
    home = Home(held(authority))
    secrets = HomeSecrets(cast("Api", home))
    asyncio.run(secrets.kubeconfig(KEY))
    home.secret["metadata"]["labels"] = {}
    with pytest.raises(KubeconfigError):
        asyncio.run(secrets.kubeconfig(KEY))
    assert home.finalizers == ["example.com/other"]


@pytest.mark.parametrize(
    "kept", [token(1_600_000_000), token(1_700_000_000), token(1_700_001_800, "other"), "opaque", ""]
)
def test_only_a_later_token_of_the_same_account_replaces_one(kept: str, authority: Path) -> None:
    home = Home(held(authority))
    secrets = HomeSecrets(cast("Api", home))

    async def scenario() -> None:
        await secrets.keep_token(KEY, await secrets.kubeconfig(KEY), kept)
        assert (await secrets.kubeconfig(KEY)).config.token == token(1_700_000_000)

    asyncio.run(scenario())
