"""What learners claim, and what they can have done."""

import asyncio

import pytest

from diloco.syncer.claims import ClaimError, Claims, PushedWork, tokens_per_step
from support.small_job import small_job

WHO = "here/cpu/0"
SLACK = 6


class Account:
    """One learner's claims, and how many were not believed."""

    def __init__(self) -> None:
        self.refused = 0
        self.claims = Claims(lambda _: 64, SLACK, self._count)
        self.claims.admitted(WHO, "process", 100)

    def _count(self) -> None:
        self.refused += 1

    def report(self, step: int, tokens: int | None = None) -> None:
        self.claims.reported(WHO, step, 64 * step if tokens is None else tokens)

    async def push(self, steps: int, *, base_version: int = 0, patience_seconds: float = 0.0) -> None:
        work = PushedWork(3, base_version, steps, 64 * steps)
        await self.claims.check_steps(WHO, work, patience_seconds)


@pytest.fixture
def account() -> Account:
    return Account()


def test_the_tokens_of_a_step_are_its_pools() -> None:
    pools = [{"name": "cpu"}, {"name": "gpu", "batchSize": 32}]
    of = tokens_per_step(small_job(regions=[{"name": "here", "pools": pools}]))
    assert (of("here/cpu/0"), of("here/gpu/9")) == (4 * 16, 32 * 16)


def test_reports_may_be_coalesced_and_steps_skipped(account: Account) -> None:
    account.report(101)
    account.report(150)
    account.report(151, 64 * 150)
    account.claims.admitted(WHO, "process", 151)
    account.report(151, 64 * 150)


@pytest.mark.parametrize(
    ("step", "tokens", "told"),
    [
        (119, 64 * 120, "reports step 119 with 7680 tokens after step 120 with 7680: neither may go back"),
        (121, 64 * 119, "neither may go back"),
        (121, 64 * 121 + 1, "claims 65 tokens in 1 steps; a step of its pool has 64"),
        (120, 64 * 120 + 1, "claims 1 tokens in 0 steps"),
    ],
)
def test_a_report_of_more_than_can_be_is_not_believed(account: Account, step: int, tokens: int, told: str) -> None:
    account.report(120)
    with pytest.raises(ClaimError, match=told):
        account.report(step, tokens)
    assert account.refused == 1


def test_a_new_process_counts_from_where_it_was_let_in(account: Account) -> None:
    account.report(120)
    account.claims.admitted(WHO, "another", 90)
    account.report(91)


def test_a_push_of_more_tokens_than_its_steps_make_is_not_believed(account: Account) -> None:
    account.claims.check_tokens(WHO, PushedWork(0, 0, 3, 192))
    with pytest.raises(ClaimError, match="claims 193 tokens in 3 steps"):
        account.claims.check_tokens(WHO, PushedWork(0, 0, 3, 193))


async def _fails(account: Account, steps: int, base_version: int = 0) -> str:
    with pytest.raises(ClaimError) as caught:
        await account.push(steps, base_version=base_version)
    return str(caught.value)


def test_a_push_counts_no_more_steps_than_were_reported_since_the_fragment_was_received(account: Account) -> None:
    async def play() -> None:
        account.report(110)
        await account.push(10 + SLACK)
        account.claims.received(WHO, 3, 1)
        account.report(120)
        text = await _fails(account, 11 + SLACK, base_version=1)
        assert text == f"{WHO} pushes 17 steps of fragment 3, but has reported 4 since it received version 1"
        # What it was ahead of its reports is not given a second time.
        await account.push(10, base_version=1)

    asyncio.run(play())


def test_a_push_that_is_ahead_of_its_reports_waits_for_them(account: Account) -> None:
    async def play() -> None:
        pushing = asyncio.ensure_future(account.push(50, patience_seconds=60.0))
        await asyncio.sleep(0)
        account.report(120)
        await asyncio.sleep(0)
        assert not pushing.done()
        account.report(150)
        await pushing

    asyncio.run(play())
    assert account.refused == 0


def test_a_push_measured_from_an_older_version_counts_from_its_own_receipt(account: Account) -> None:
    async def play() -> None:
        account.claims.received(WHO, 3, 1)
        account.report(140)
        account.claims.received(WHO, 3, 2)
        account.report(141)
        await account.push(40, base_version=1)
        await _fails(account, 2 + SLACK, base_version=2)
        await account.push(1 + SLACK, base_version=2)

    asyncio.run(play())


def test_who_never_says_that_it_received_gains_nothing(account: Account) -> None:
    async def play() -> None:
        account.report(110)
        for version in range(10 + SLACK):
            await account.push(1, base_version=version)
        await _fails(account, 1, base_version=10 + SLACK)

    asyncio.run(play())


def test_a_broken_link_does_not_begin_the_account_anew(account: Account) -> None:
    async def play() -> None:
        account.report(110)
        await account.push(10 + SLACK)
        account.claims.admitted(WHO, "process", 110)
        await _fails(account, 1, base_version=1)

    asyncio.run(play())
