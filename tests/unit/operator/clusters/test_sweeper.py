import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from diloco_operator import labels
from diloco_operator.api_server.cache import ObjectKey
from diloco_operator.api_server.errors import (
    ApiError,
    Call,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    UnansweredError,
)
from diloco_operator.api_server.kinds import Kind, Object
from diloco_operator.cluster_state import ClusterSeen, ClusterState
from diloco_operator.clusters.home import ClusterKey
from diloco_operator.clusters.sweeper import EVERY_SECONDS, LOOK_SECONDS, Sweeper
from tests.support.virtual_time import in_virtual_time

HOME_ID, THERE = "home-1", "theirs"
FAR = ClusterKey("team", "far")
CALL = Call("delete", "secrets")
SOON, LATER = 2 * LOOK_SECONDS, 1.3 * EVERY_SECONDS


@dataclass
class Home:
    """The API server at home, as far as jobs are listed."""

    uids: set[str] = field(default_factory=set)
    error: ApiError | None = None
    lists: int = 0

    async def items(self, _: object) -> list[Object]:
        self.lists += 1
        if self.error is not None:
            raise self.error
        # All are being deleted: until they are gone, the operator itself deletes what they have elsewhere.
        return [{"metadata": {"uid": uid, "deletionTimestamp": "2026-01-02T03:04:05Z"}} for uid in self.uids]


@dataclass
class Far:
    """A cluster in use."""

    names: dict[str, str] = field(default_factory=dict)
    """The uid of the job of each object."""
    errors: dict[str, ApiError] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)
    failed: list[ApiError] = field(default_factory=list)
    state: ClusterState = ClusterState.READY
    held: bool = True
    hangs: bool = False

    def __post_init__(self) -> None:
        self.session = SimpleNamespace(
            whole=True,
            returns=0,
            api=self,
            cache=SimpleNamespace(everything=self._everything),
            config=SimpleNamespace(namespace=THERE),
            failed=self.failed.append,
        )

    @property
    def seen(self) -> ClusterSeen:
        return ClusterSeen(self.state, held=self.held)

    def _everything(self) -> list[tuple[ObjectKey, Object]]:
        found = []
        for name, uid in self.names.items():
            own = {**labels.of_job("demo", labels.LEARNER), **labels.of_home(HOME_ID, "team", uid)}
            metadata = {"namespace": THERE, "name": name, "uid": f"uid-of-{name}", "labels": own}
            found.append((ObjectKey("Secret", THERE, name), {"metadata": metadata}))
        return found

    async def delete(self, _: Kind, namespace: str, name: str, preconditions: Mapping[str, str]) -> None:
        assert (namespace, preconditions) == (THERE, {"uid": f"uid-of-{name}"})
        self.tried.append(name)
        if self.hangs:
            await asyncio.sleep(10 * EVERY_SECONDS)
        if name in self.errors:
            raise self.errors[name]
        del self.names[name]


Clusters = SimpleNamespace


def sweeping(home: Home, scenario: Callable[[Clusters], Awaitable[None]], **clusters: Far) -> list[str]:
    """Play a scenario beside a sweeper; returns what was swept."""
    swept: list[str] = []

    async def main() -> None:
        used = {ClusterKey("team", name): far for name, far in clusters.items()}
        registry: Any = Clusters(home_id=HOME_ID, used=used, namespaces=())
        api: Any = home
        sweeper = Sweeper(registry, api, swept.append, asyncio.get_running_loop().time, random.Random(0).random)
        running = asyncio.create_task(sweeper.run())
        try:
            await scenario(registry)
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    in_virtual_time(main())
    return swept


def test_a_cluster_in_use_is_swept_and_again_now_and_then() -> None:
    far, home = Far({"a": "gone", "b": "alive"}), Home({"alive"})

    async def scenario(_: Clusters) -> None:
        await asyncio.sleep(SOON)
        assert far.names == {"b": "alive"}
        far.names["c"] = "gone"
        await asyncio.sleep(0.7 * EVERY_SECONDS)
        assert "c" in far.names
        await asyncio.sleep(LATER)
        assert far.names == {"b": "alive"}

    assert sweeping(home, scenario, far=far) == ["team/far", "team/far"]


def test_nothing_is_swept_where_home_does_not_hold_its_lease() -> None:
    far = Far({"a": "gone"}, held=False)

    async def scenario(_: Clusters) -> None:
        await asyncio.sleep(LATER)
        assert far.names
        far.held = True
        await asyncio.sleep(SOON)
        assert not far.names

    assert sweeping(Home(), scenario, far=far) == ["team/far"]


def test_a_cluster_that_comes_back_is_swept_soon() -> None:
    far, home = Far(), Home()

    async def scenario(_: Clusters) -> None:
        await asyncio.sleep(SOON)
        far.state = ClusterState.UNREACHABLE
        far.names["a"] = "gone"
        await asyncio.sleep(LATER)
        far.state, far.session.whole = ClusterState.READY, False
        await asyncio.sleep(LATER)
        assert far.names, "it is not known yet what is there"
        far.session.whole = True
        await asyncio.sleep(SOON)
        assert not far.names
        far.names["b"] = "gone"
        far.session.returns += 1  # it was away between two looks
        await asyncio.sleep(SOON)
        assert not far.names

    sweeping(home, scenario, far=far)


def test_nothing_is_swept_before_the_homes_id_and_all_jobs_are_known() -> None:
    far, home = (
        Far({"a": "gone"}),
        Home(error=NotFoundError(Call("list", "dilocojobs"), "404 page not found", code=404)),
    )

    async def scenario(clusters: Clusters) -> None:
        clusters.home_id = ""
        await asyncio.sleep(LATER)
        assert home.lists == 0
        clusters.home_id = HOME_ID
        await asyncio.sleep(SOON)
        assert home.lists == 1
        await asyncio.sleep(LATER)
        assert far.names
        home.error = None
        await asyncio.sleep(LATER)
        assert not far.names

    sweeping(home, scenario, far=far)


FORBIDDEN, SILENT = ForbiddenError(CALL, "no", code=403), UnansweredError(CALL, "no answer in time")
GONE, REPLACED = NotFoundError(CALL, "gone", code=404), ConflictError(CALL, "uid", code=409)


@pytest.mark.parametrize(
    ("errors", "seconds", "tried", "failed"),
    [
        ({"a": FORBIDDEN}, SOON, 3, [FORBIDDEN]),
        ({"a": SILENT}, SOON, 1, []),
        ({"a": GONE, "b": REPLACED}, 0.7 * EVERY_SECONDS, 3, []),
    ],
    ids=["forbidden", "silent", "gone or replaced"],
)
def test_a_deletion_that_fails_ends_those_that_would_fail_too(
    errors: dict[str, ApiError], seconds: float, tried: int, failed: list[ApiError]
) -> None:
    far = Far(dict.fromkeys("abc", "gone"), errors=dict(errors))

    async def scenario(_: Clusters) -> None:
        await asyncio.sleep(seconds)
        assert (len(far.tried), far.failed) == (tried, failed)
        far.errors.clear()
        await asyncio.sleep(LATER)
        assert not far.names

    sweeping(Home(), scenario, far=far)


def test_one_that_hangs_is_left_and_the_others_get_their_turn() -> None:
    hanging, far = Far({"a": "gone"}, hangs=True), Far({"a": "gone"})

    async def scenario(_: Clusters) -> None:
        await asyncio.sleep(0.5 * EVERY_SECONDS)
        assert not far.names

    sweeping(Home(), scenario, hangs=hanging, far=far)
