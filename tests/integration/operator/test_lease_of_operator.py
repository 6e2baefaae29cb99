import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from diloco_operator.cluster.api import Api
from diloco_operator.cluster.connection import connect
from diloco_operator.lease import Clocks, Lease, LeaseLostError, LeaseTimes
from testbed.api_server.fault_proxy import FaultProxy
from testbed.api_server.server import ApiServer
from tests.support.closed_loop import run_until_closed

SHORT = LeaseTimes(duration_seconds=9.0, give_up_seconds=7.0, renew_seconds=1.0)
LONG = LeaseTimes(duration_seconds=600.0, give_up_seconds=500.0, renew_seconds=1.0)
PATIENCE_SECONDS = 60.0

MakeLease = Callable[[str, LeaseTimes], Lease]


@asynccontextmanager
async def leases(kubeconfig: Path, namespace: str) -> AsyncIterator[MakeLease]:
    connection = await connect(kubeconfig, None)
    async with connection.open() as client:
        api = Api(client, "test")
        clocks = Clocks(lambda: datetime.now(UTC), time.monotonic)
        yield lambda identity, times: Lease(api, namespace, "the-lease", identity, clocks, times)


async def until(holds: Callable[[], bool]) -> None:
    # Polled, as nothing signals the change: it is a value of the code under test, or of a thread.
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not holds():  # noqa: ASYNC110 # see above
            await asyncio.sleep(0.02)


async def in_time(wait: Awaitable[None]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await wait


def test_the_second_knows_the_holder_and_acquires_at_once_on_its_release(server: ApiServer, namespace: str) -> None:
    async def scenario() -> None:
        async with leases(server.kubeconfig, namespace) as make:
            first, second = make("first", LONG), make("second", LONG)
            await in_time(first.acquire())
            waiting = asyncio.create_task(second.acquire())
            await until(lambda: second.other == "first")
            assert [lease.held for lease in (first, second)] == [True, False]
            with pytest.raises(LeaseLostError):
                second.check()
            await first.release()
            await in_time(waiting)
            assert [lease.held for lease in (first, second)] == [False, True]

    run_until_closed(scenario())
    transitions = server.kubectl(
        "get", "lease", "the-lease", f"--namespace={namespace}", "--output=jsonpath={.spec.leaseTransitions}"
    )
    assert transitions.stdout == "1"


def test_a_lease_that_is_renewed_is_never_taken_and_one_that_is_not_is(server: ApiServer, namespace: str) -> None:
    async def scenario() -> None:
        async with leases(server.kubeconfig, namespace) as make:
            first, second = make("first", SHORT), make("second", SHORT)
            await in_time(first.acquire())
            keeping, waiting = asyncio.create_task(first.keep()), asyncio.create_task(second.acquire())
            # Longer than the lease lasts unless it is renewed.
            await asyncio.wait((waiting,), timeout=2 * SHORT.duration_seconds)
            assert not waiting.done()
            keeping.cancel()
            await in_time(waiting)
            assert not first.held

    run_until_closed(scenario())


def test_a_holder_that_cannot_renew_stops_before_another_may_begin(
    server: ApiServer, namespace: str, proxy: FaultProxy
) -> None:
    async def scenario() -> None:
        async with leases(proxy.kubeconfig, namespace) as make, leases(server.kubeconfig, namespace) as make_directly:
            first, second = make("first", SHORT), make_directly("second", SHORT)
            await in_time(first.acquire())
            waiting = asyncio.create_task(second.acquire())
            await until(lambda: second.other == "first")
            proxy.fault("leases", times=-1, code=0)
            with pytest.raises(LeaseLostError):
                await in_time(first.keep())
            assert not waiting.done()
            with pytest.raises(LeaseLostError):
                first.check()
            await in_time(waiting)

    run_until_closed(scenario())


def test_a_renewal_whose_answer_was_lost_is_no_lost_lease(namespace: str, proxy: FaultProxy) -> None:
    async def scenario() -> None:
        async with leases(proxy.kubeconfig, namespace) as make:
            lease = make("first", LONG)
            await in_time(lease.acquire())
            keeping = asyncio.create_task(lease.keep())
            lost = proxy.fault("PUT .*leases", code=0, after_asking=True)
            await until(lambda: lost.struck == 1)
            renewed = proxy.asked("PUT .*leases")
            # The next one meets a version that it does not know; the ones after it are as before.
            await until(lambda: proxy.asked("PUT .*leases") >= renewed + 4 or keeping.done())
            assert not keeping.done()
            assert lease.held
            keeping.cancel()

    run_until_closed(scenario())


def test_a_lease_that_somebody_else_took_or_deleted_is_lost(server: ApiServer, namespace: str) -> None:
    patch = '{"spec": {"holderIdentity": "intruder"}}'

    async def scenario(*interference: str) -> None:
        async with leases(server.kubeconfig, namespace) as make:
            lease = make("first", LONG)
            await in_time(lease.acquire())
            await asyncio.to_thread(server.kubectl, *interference, f"--namespace={namespace}")
            with pytest.raises(LeaseLostError):
                await in_time(lease.keep())

    run_until_closed(scenario("patch", "lease", "the-lease", "--type=merge", f"--patch={patch}"))
    server.kubectl("delete", "lease", "the-lease", f"--namespace={namespace}")
    run_until_closed(scenario("delete", "lease", "the-lease"))


def test_an_absent_server_is_waited_for(namespace: str, proxy: FaultProxy) -> None:
    async def scenario() -> None:
        async with leases(proxy.kubeconfig, namespace) as make:
            lease = make("first", LONG)
            away = proxy.fault("leases", times=-1, code=0)
            waiting = asyncio.create_task(lease.acquire())
            await until(lambda: away.struck >= 5)
            assert lease.problem
            assert not waiting.done()
            proxy.mend()
            await in_time(waiting)
            assert lease.held
            assert not lease.problem

    run_until_closed(scenario())
