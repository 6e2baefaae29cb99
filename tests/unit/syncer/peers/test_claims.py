"""What learners claim, and what they can have done."""

import asyncio

import pytest

from diloco.syncer.peers.claims import ClaimError, ClaimLimits, Claims, PushedWork, tokens_per_step
from diloco.syncer.peers.speeds import FASTEST_STEPS_PER_SECOND, JOB_FACTOR, POOL_FACTOR, SAVED_SECONDS
from tests.support.small_job import small_job

WHO, BESIDE, ELSEWHERE = "here/cpu/0", "here/cpu/1", "here/gpu/0"
SLACK = 60
BUDGET = 64_000
LIFE = 100 * BUDGET
"""Tokens that a learner may have trained before this syncer knew it."""
POOLS = frozenset({"here/cpu", "here/gpu"})
LIMITS = ClaimLimits(lambda _: 64, POOLS, sequence_length=16, budget_tokens=BUDGET, bound_steps=SLACK)


class Account:
    """One learner's claims, and how many were not believed."""

    def __init__(self) -> None:
        self.refused = 0
        self.now = 1000.0
        self.claims = Claims(LIMITS, self._count, lambda: self.now)
        self.claims.admitted(WHO, "process", 100, 400)

    def _count(self) -> None:
        self.refused += 1

    def report(self, step: int, tokens: int | None = None, *, learner: str = WHO, position: int | None = None) -> None:
        told = 64 * step if tokens is None else tokens
        self.claims.reported(learner, step, told, 4 * step if position is None else position)

    def train(self, learner: str, steps_per_second: float, seconds: int) -> None:
        """A learner joins and reports once a second."""
        self.claims.admitted(learner, "process", 0, 0)
        for second in range(seconds):
            self.report(int(steps_per_second * second), learner=learner)
            self.now += 1.0

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


def train_side_by_side(pool: str) -> None:
    """Two learners of a pool train, one of them 40 times as fast as the other."""
    pools = [{"name": "even"}, {"name": "uneven", "batchSize": "Auto"}]
    now = 1000.0
    claims = Claims(ClaimLimits.of(small_job(regions=[{"name": "here", "pools": pools}])), lambda: None, lambda: now)
    pair = ((f"here/{pool}/0", 1), (f"here/{pool}/1", 40))
    for learner, _ in pair:
        claims.admitted(learner, "process", 0, 0)
    for second in range(300):
        now += 1.0
        for learner, steps_per_second in pair:
            claims.reported(learner, steps_per_second * second, 0, 0)


def test_in_a_pool_whose_batches_differ_a_small_batch_may_make_many_steps() -> None:
    train_side_by_side("uneven")
    with pytest.raises(ClaimError, match="here/even/1 claims"):
        train_side_by_side("even")


def test_reports_may_be_coalesced_and_steps_skipped(account: Account) -> None:
    account.report(101)
    account.report(150)
    account.report(151, 64 * 150)
    account.claims.admitted(WHO, "process", 151, 604)
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
    account.claims.admitted(WHO, "another", 90, 360)
    account.report(91)


def test_a_push_of_more_tokens_than_its_steps_make_is_not_believed(account: Account) -> None:
    account.claims.check_work(WHO, PushedWork(0, 0, 3, 192))
    with pytest.raises(ClaimError, match="claims 193 tokens in 3 steps"):
        account.claims.check_work(WHO, PushedWork(0, 0, 3, 193))


async def _fails(account: Account, steps: int, base_version: int = 0) -> str:
    with pytest.raises(ClaimError) as caught:
        await account.push(steps, base_version=base_version)
    return str(caught.value)


def test_a_push_counts_only_steps_reported_since_the_fragment_was_received(account: Account) -> None:
    async def play() -> None:
        account.report(110)
        await account.push(10 + SLACK)
        account.claims.received(WHO, 3, 1)
        account.report(120)
        text = await _fails(account, 11 + SLACK, base_version=1)
        assert text == f"{WHO} pushes 71 steps of fragment 3, but has reported 0 since it received version 1"
        # What it was ahead of its reports is not given a second time.
        await account.push(10, base_version=1)

    asyncio.run(play())


def test_a_push_that_is_ahead_of_its_reports_waits_for_them(account: Account) -> None:
    async def play() -> None:
        pushing = asyncio.ensure_future(account.push(SLACK + 45, patience_seconds=60.0))
        await asyncio.sleep(0)
        account.report(144)
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


def test_steps_before_the_receipt_of_a_fragment_do_not_count(account: Account) -> None:
    async def play() -> None:
        account.report(110)
        account.claims.received(WHO, 3, 1)
        await _fails(account, 1 + SLACK, base_version=1)
        await account.push(SLACK, base_version=1)

    asyncio.run(play())


def test_the_first_push_may_come_before_any_report(account: Account) -> None:
    account.claims.admitted(WHO, "another", 0, 0)
    account.claims.received(WHO, 3, 1)
    asyncio.run(account.push(SLACK, base_version=1))


def test_a_push_that_is_asked_for_again_counts_the_same_steps_again(account: Account) -> None:
    async def play() -> None:
        account.report(110)
        await account.push(10 + SLACK)
        await account.push(10 + SLACK)

    asyncio.run(play())


def test_each_of_the_last_twelve_receipts_counts_by_itself(account: Account) -> None:
    async def play() -> None:
        for version in range(1, 13):
            account.now += 1.0
            account.report(100 + 10 * version)
            account.claims.received(WHO, 3, version)
        await _fails(account, 111 + SLACK, base_version=1)
        await account.push(110 + SLACK, base_version=1)

    asyncio.run(play())


def test_steps_that_were_pushed_are_not_given_again_after_many_receipts(account: Account) -> None:
    async def play() -> None:
        account.report(110)
        await account.push(10 + SLACK)
        for version in range(2, 50):
            account.claims.received(WHO, 3, version)
        await _fails(account, 1, base_version=49)

    asyncio.run(play())


def test_a_broken_link_does_not_begin_the_account_anew(account: Account) -> None:
    async def play() -> None:
        account.report(110)
        await account.push(10 + SLACK)
        account.claims.admitted(WHO, "process", 110, 440)
        await _fails(account, 1, base_version=1)

    asyncio.run(play())


def test_a_push_counts_no_more_steps_than_a_learner_makes_on_a_fragment(account: Account) -> None:
    account.claims.check_work(WHO, PushedWork(3, 0, SLACK, 64 * SLACK))
    text = f"pushes 1000000000 steps of fragment 3; at {SLACK} a learner pauses"
    with pytest.raises(ClaimError, match=text):
        account.claims.check_work(WHO, PushedWork(3, 0, 10**9, 64 * 10**9))
    assert account.refused == 1


def test_one_that_is_alone_is_believed_up_to_what_no_machine_can_do(account: Account) -> None:
    account.now += 1.0
    most = 100 + SLACK + int(FASTEST_STEPS_PER_SECOND)
    with pytest.raises(ClaimError, match=r"claims 50000000 steps and .* than are known; there was time for 10060"):
        account.report(50_000_100)
    account.report(most)
    with pytest.raises(ClaimError):
        account.report(most + 1)


@pytest.mark.parametrize(("other", "factor"), [(BESIDE, POOL_FACTOR), (ELSEWHERE, JOB_FACTOR)])
def test_one_is_believed_up_to_a_multiple_of_the_fastest_other(account: Account, other: str, factor: int) -> None:
    account.train(other, 2.0, 60)
    account.report(101)
    account.now += 1.0
    saved = int(SLACK + SAVED_SECONDS * 2 * factor)
    with pytest.raises(ClaimError):
        account.report(102 + saved)
    account.report(101 + saved)
    account.now += 1.0
    account.report(101 + saved + 2 * factor)
    with pytest.raises(ClaimError):
        account.report(102 + saved + 2 * factor)


def test_a_pool_is_measured_without_first_steps_and_pauses(account: Account) -> None:
    account.train(BESIDE, 0.0, 4)
    account.claims.admitted(BESIDE, "another", 0, 0)
    account.now += 600.0  # it compiles
    account.train(BESIDE, 10.0, 12)
    account.now += 600.0
    account.report(1000, learner=BESIDE)
    account.report(101)
    assert account.claims._speeds.most_steps_per_second(WHO) == 10 * POOL_FACTOR
    assert account.claims._speeds.most_steps_per_second(BESIDE) == FASTEST_STEPS_PER_SECOND


def test_sequences_are_bounded_as_steps_are(account: Account) -> None:
    account.report(100, position=400 + 4 * SLACK)
    with pytest.raises(ClaimError, match=r"claims 1 steps and 1 sequences more"):
        account.report(101, position=401 + 4 * SLACK)
    with pytest.raises(ClaimError):
        account.report(101, position=2**63 - 1)


@pytest.mark.parametrize(("steps", "position"), [(5_000_000, 0), (0, 2**63 - 1)])
@pytest.mark.parametrize("known", [False, True])
def test_a_join_with_more_behind_it_than_can_be_is_refused(
    account: Account, steps: int, position: int, *, known: bool
) -> None:
    learner = WHO if known else BESIDE
    with pytest.raises(ClaimError, match="claims" if known else "in this job it can have made"):
        account.claims.check_join(learner, steps, position)
    account.claims.check_join(learner, 100, 400)
    assert account.refused == 1


def test_a_join_may_bring_what_was_made_while_nobody_listened(account: Account) -> None:
    account.claims.check_join(WHO, 100 + SLACK, 400 + 4 * SLACK)
    account.claims.admitted(WHO, "process", 100 + SLACK, 400 + 4 * SLACK)
    # But not twice.
    with pytest.raises(ClaimError):
        account.claims.check_join(WHO, 100 + 2 * SLACK, 400)
    most = LIFE // 64 + SLACK
    account.claims.check_join(BESIDE, most, 4 * most)
    with pytest.raises(ClaimError):
        account.claims.check_join(BESIDE, most + 1, 0)
    with pytest.raises(ClaimError):
        account.claims.check_join(BESIDE, 0, 4 * most + 1)


def test_the_first_report_brings_no_more_tokens_than_the_job_has(account: Account) -> None:
    most = LIFE + 64 * 100
    with pytest.raises(ClaimError, match=f"reports {most + 1} tokens; in this job it can have trained {most}"):
        account.report(100, most + 1)
    account.report(100, most)


def test_a_process_that_begins_anew_does_not_slow_down_the_others(account: Account) -> None:
    account.train(BESIDE, 0.0, 1)
    account.claims.admitted(BESIDE, "another", 0, 0)
    account.now += 600.0  # it compiles
    account.report(1, learner=BESIDE)
    account.report(101)
    account.now += 1.0
    account.report(101 + SLACK + 1000)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_pause_right_after_a_first_step_costs_the_others_nothing(account: Account, *, restarted: bool) -> None:
    if restarted:
        account.train(BESIDE, 50.0, 30)
        account.claims.admitted(BESIDE, "another", 1450, 5800)
    else:
        account.claims.admitted(BESIDE, "process", 1450, 5800)
    account.report(1451, learner=BESIDE)
    account.now += 600.0  # it recompiles, or is frozen
    for second in range(30):
        account.report(1452 + 50 * second, learner=BESIDE)
        account.report(101 + 50 * second)
        account.now += 1.0
    assert account.refused == 0


def test_what_a_process_that_lost_its_link_comes_back_with_is_known(account: Account) -> None:
    account.report(110)
    account.claims.admitted(WHO, "process", 150, 600)
    asyncio.run(account.push(50 + SLACK))
    account.train(BESIDE, 2.0, 60)
    most = 150 + SLACK + int(SAVED_SECONDS * 2 * POOL_FACTOR)
    account.report(most)


def test_a_learner_of_no_pool_is_left_to_who_knows_the_learners() -> None:
    claims = Claims(ClaimLimits.of(small_job()), lambda: None, lambda: 0.0)
    claims.check_join("elsewhere/cpu/0", 2**63 - 1, 2**63 - 1)
    with pytest.raises(ClaimError):
        claims.check_join("here/cpu/0", 2**63 - 1, 0)
