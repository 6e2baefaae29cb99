import asyncio
import time
from datetime import UTC, datetime

import pytest

from diloco_operator.api_server.api import Api
from diloco_operator.leases.lease import Clocks, Lease, LeaseLostError, LeaseTimes
from testbed.api_server.fault_proxy import FaultProxy
from testbed.api_server.server import ApiServer
from tests.support.closed_loop import until

SHORT = LeaseTimes(duration_seconds=9.0, give_up_seconds=7.0, renew_seconds=1.0)
LONG = LeaseTimes(duration_seconds=600.0, give_up_seconds=500.0, renew_seconds=1.0)


def lease_of(api: Api, namespace: str, identity: str, times: LeaseTimes = LONG) -> Lease:
    clocks = Clocks(lambda: datetime.now(UTC), time.monotonic)
    return Lease(api, namespace, "the-lease", identity, clocks, times)


async def test_the_second_knows_the_holder_and_acquires_at_once_on_its_release(
    api: Api, server: ApiServer, namespace: str
) -> None:
    first, second = lease_of(api, namespace, "first"), lease_of(api, namespace, "second")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await until(lambda: second.other == "first")
    assert [lease.held for lease in (first, second)] == [True, False]
    with pytest.raises(LeaseLostError):
        second.check()
    await first.release()
    await waiting
    assert [lease.held for lease in (first, second)] == [False, True]
    transitions = server.kubectl(
        "get", "lease", "the-lease", f"--namespace={namespace}", "--output=jsonpath={.spec.leaseTransitions}"
    )
    assert transitions.stdout == "1"


async def test_who_starts_again_under_its_name_waits_for_nothing(api: Api, namespace: str) -> None:
    first, again = lease_of(api, namespace, "first"), lease_of(api, namespace, "first")
    await first.acquire()
    async with asyncio.timeout(LONG.duration_seconds / 2):
        await again.acquire()
    assert again.held


async def test_a_lease_that_is_renewed_is_never_taken_and_one_that_is_not_is(api: Api, namespace: str) -> None:
    first, second = lease_of(api, namespace, "first", SHORT), lease_of(api, namespace, "second", SHORT)
    await first.acquire()
    keeping, waiting = asyncio.create_task(first.keep()), asyncio.create_task(second.acquire())
    # Longer than the lease lasts unless it is renewed.
    await asyncio.wait((waiting,), timeout=2 * SHORT.duration_seconds)
    assert not waiting.done()
    keeping.cancel()
    await waiting
    assert not first.held


async def test_a_holder_that_cannot_renew_stops_before_another_may_begin(
    api: Api, proxied: Api, namespace: str, proxy: FaultProxy
) -> None:
    first, second = lease_of(proxied, namespace, "first", SHORT), lease_of(api, namespace, "second", SHORT)
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await until(lambda: second.other == "first")
    proxy.fault("leases", times=-1, code=0)
    with pytest.raises(LeaseLostError):
        await first.keep()
    assert not waiting.done()
    with pytest.raises(LeaseLostError):
        first.check()
    await waiting


async def test_a_renewal_whose_answer_was_lost_is_no_lost_lease(
    proxied: Api, namespace: str, proxy: FaultProxy
) -> None:
    lease = lease_of(proxied, namespace, "first")
    await lease.acquire()
    keeping = asyncio.create_task(lease.keep())
    lost = proxy.fault("PUT .*leases", code=0, after_asking=True)
    await until(lambda: lost.struck == 1)
    renewed = proxy.asked("PUT .*leases")
    # The next one meets a version that it does not know; the ones after it are as before.
    await until(lambda: proxy.asked("PUT .*leases") >= renewed + 4 or keeping.done())
    assert not keeping.done()
    assert lease.held
    keeping.cancel()


@pytest.mark.parametrize(
    ("verb", "flags"),
    [("patch", ("--type=merge", '--patch={"spec": {"holderIdentity": "intruder"}}')), ("delete", ())],
)
async def test_a_lease_that_somebody_else_took_or_deleted_is_lost(
    api: Api, server: ApiServer, namespace: str, verb: str, flags: tuple[str, ...]
) -> None:
    lease = lease_of(api, namespace, "first")
    await lease.acquire()
    await asyncio.to_thread(server.kubectl, verb, "lease", "the-lease", f"--namespace={namespace}", *flags)
    with pytest.raises(LeaseLostError):
        await lease.keep()


async def test_an_absent_server_is_waited_for(proxied: Api, namespace: str, proxy: FaultProxy) -> None:
    lease = lease_of(proxied, namespace, "first")
    away = proxy.fault("leases", times=-1, code=0)
    waiting = asyncio.create_task(lease.acquire())
    await until(lambda: away.struck >= 5)
    assert lease.error is not None
    assert not waiting.done()
    proxy.mend()
    await waiting
    assert lease.held
    assert lease.error is None
