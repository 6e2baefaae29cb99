import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from diloco_operator.api_server.errors import Call, UnansweredError, of_status
from diloco_operator.api_server.kinds import CLUSTER_ROLE_BINDING, LEASE, ROLE_BINDING, Kind, Object
from diloco_operator.leases.lease import Clocks
from diloco_operator.leases.namespaces import TIMES, Namespaces
from tests.support.virtual_time import VirtualTimeLoop

RENEWAL = TIMES.renew_seconds
LONG = TIMES.duration_seconds + 2 * RENEWAL
HELD = "not acting in team: lease team/diloco-jobs is held by {}"


class LeaseServer:
    """Stands for the API server: the Lease of one namespace, and bindings by namespace and name."""

    def __init__(self) -> None:
        self.lease: Object | None = None
        self.refusal: Exception | None = None
        self.writes = 0
        self.bindings: dict[tuple[Kind, str | None, str], str] = {}

    async def get(self, kind: Kind, namespace: str | None, name: str, **_: object) -> Object:
        if uid := self.bindings.get((kind, namespace, name)):
            return {"metadata": {"uid": uid}}
        if kind is not LEASE or self.lease is None:
            raise of_status(Call("get", kind.resource, namespace, name), 404, {"message": "not found"})
        return self.lease

    async def create(self, kind: Kind, body: Object, **_: object) -> Object:
        del kind
        return self._put(body)

    async def replace(self, kind: Kind, body: Object, **_: object) -> Object:
        live = await self.get(kind, "team", "diloco-jobs")
        if live["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise of_status(Call("update", kind.resource), 409, {"message": "another version"})
        return self._put(body)

    def _put(self, body: Object) -> Object:
        if self.refusal is not None:
            raise self.refusal
        self.writes += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.writes)}}
        return self.lease


@pytest.fixture(autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as made:
        yield made


@pytest.fixture
def server() -> LeaseServer:
    return LeaseServer()


@asynccontextmanager
async def operator(
    server: LeaseServer, name: str, taken: list[str] | None = None, binding: tuple[Kind, str] | None = None
) -> AsyncIterator[Namespaces]:
    """A process of this operator that has asked whether it acts in the namespace."""
    clocks = Clocks(lambda: datetime(2026, 1, 1, tzinfo=UTC), asyncio.get_running_loop().time)
    api: Any = server
    made = Namespaces(api, name, clocks, ([] if taken is None else taken).append, binding)
    work = asyncio.create_task(made.run())
    await asyncio.sleep(0)
    assert not made.acts_in("team")
    await asyncio.sleep(1.0)
    yield made
    work.cancel()
    await asyncio.wait((work,))


async def test_the_first_acts_while_it_works_and_the_second_says_who_does(server: LeaseServer) -> None:
    async with operator(server, "home/first") as first, operator(server, "other/second") as second:
        await asyncio.sleep(10 * LONG)
        assert (first.acts_in("team"), second.acts_in("team")) == (True, False)
        assert (list(first.held_by_others()), list(second.held_by_others())) == ([], [HELD.format("home/first")])


async def test_its_own_is_where_it_acts_or_would_if_it_were_let(server: LeaseServer) -> None:
    async with operator(server, "home/first") as first, operator(server, "other/second") as second:
        assert (first.is_own("team"), second.is_own("team")) == (True, False)
        assert not first.is_own("never-heard-of")
        first.leave("team")
        assert not first.is_own("team")
    server.lease, server.refusal = None, of_status(Call("create", "leases"), 403, {"message": "quota"})
    async with operator(server, "home/first") as first:
        assert (first.acts_in("team"), first.is_own("team")) == (False, True)


async def test_a_namespace_whose_operator_is_gone_is_taken_by_another_one(server: LeaseServer) -> None:
    taken: list[str] = []
    async with operator(server, "home/first"):
        pass
    async with operator(server, "other/second", taken) as second:
        await asyncio.sleep(LONG)
        assert second.acts_in("team")
        assert taken == ["team"]


async def test_a_new_process_of_an_operator_acts_at_once(server: LeaseServer) -> None:
    async with operator(server, "home/first"):
        pass
    async with operator(server, "home/first") as again:
        assert again.acts_in("team")


async def test_the_lease_of_a_namespace_without_jobs_is_renewed_no_more(server: LeaseServer) -> None:
    async with operator(server, "home/first") as first:
        first.leave("team")
        writes = server.writes
        await asyncio.sleep(LONG)
        assert server.writes == writes


async def test_a_deleted_lease_is_taken_again_or_lost_to_who_is_quicker(server: LeaseServer) -> None:
    async with operator(server, "home/first") as first, operator(server, "other/second") as second:
        server.lease = None
        await asyncio.sleep(RENEWAL)
        assert first.acts_in("team") is not second.acts_in("team")
        server.lease = None
        await asyncio.sleep(2 * RENEWAL)
        assert first.acts_in("team") is not second.acts_in("team")


async def test_who_acted_in_a_namespace_ends_its_jobs_while_it_is_deleted(server: LeaseServer) -> None:
    """Without a Lease, which is deleted too: else their finalizer would stay."""
    async with operator(server, "home/first") as first, operator(server, "other/second") as second:
        server.lease = None
        details = {"causes": [{"reason": "NamespaceTerminating"}]}
        server.refusal = of_status(Call("create", "leases"), 403, {"message": "going", "details": details})
        await asyncio.sleep(LONG)
        assert (first.acts_in("team"), second.acts_in("team")) == (True, False)


@pytest.mark.parametrize(("kind", "where"), [(ROLE_BINDING, "team"), (CLUSTER_ROLE_BINDING, None)])
async def test_a_lease_goes_with_the_rights_of_the_operator_that_made_it(
    server: LeaseServer, kind: Kind, where: str | None
) -> None:
    def owners() -> list[tuple[str, str]]:
        live = {} if server.lease is None else server.lease["metadata"]
        return [(one["kind"], one["uid"]) for one in live["ownerReferences"]]

    server.bindings = {(kind, where, "rights"): "first"}
    async with operator(server, "home/first", binding=(kind, "rights")) as first:
        assert owners() == [(kind.name, "first")]
        server.bindings, server.lease = {(kind, where, "rights"): "made anew"}, None
        await asyncio.sleep(2 * RENEWAL)
        assert first.acts_in("team")
        assert owners() == [(kind.name, "made anew")]
    async with operator(server, "other/second", binding=(kind, "others")) as second:
        await asyncio.sleep(LONG)
        assert second.acts_in("team")
        assert owners() == [(kind.name, "made anew")], "to change it may need more rights"


async def test_a_lease_is_taken_where_the_binding_of_the_rights_is_not_known(
    server: LeaseServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with operator(server, "home/first", binding=(CLUSTER_ROLE_BINDING, "rights")) as first:
        assert first.acts_in("team")
    assert "lease team/diloco-jobs stays when this operator is uninstalled: " in caplog.text


async def test_a_lease_that_may_not_be_made_is_a_problem_and_nothing_is_done(server: LeaseServer) -> None:
    server.refusal = of_status(Call("create", "leases"), 403, {"message": "cannot create leases"})
    async with operator(server, "home/first") as first:
        assert not first.acts_in("team")
        assert list(first.problems()) == ["not acting in team: lease team/diloco-jobs: cannot create leases"]
        assert first.refused("team") == "lease team/diloco-jobs: cannot create leases"


async def test_a_refused_lease_is_told_once_and_again_when_it_is_taken(server: LeaseServer) -> None:
    server.refusal = of_status(Call("create", "leases"), 403, {"message": "exceeded quota"})
    told: list[str] = []
    async with operator(server, "home/first", told) as first:
        await asyncio.sleep(LONG)
        assert told == ["team"]
        server.refusal = None
        await asyncio.sleep(LONG)
        assert first.acts_in("team")
        assert told == ["team", "team"]


async def test_a_server_that_is_away_refuses_no_lease(server: LeaseServer) -> None:
    server.refusal = UnansweredError(Call("create", "leases"), "cannot connect")
    async with operator(server, "home/first") as first:
        assert (first.refused("team"), len(list(first.problems()))) == ("", 1)
