"""What learners claim, and what they can have done."""

import pytest

from diloco.core.engine.events import StepReported
from diloco.syncer.peers.claims import ClaimError, ClaimLimits, Claims, tokens_per_step
from diloco.syncer.peers.speeds import JOB_FACTOR, POOL_FACTOR, SAVED_SECONDS
from diloco.wire.messages import PushHeader
from tests.support.small_job import small_job

WHO, BESIDE, ELSEWHERE = "here/cpu/0", "here/cpu/1", "here/gpu/0"
SLACK = 60
BUDGET = 64_000
LIFE = 100 * BUDGET
"""Tokens that a learner may have trained before this syncer knew it."""
POOLS = frozenset({"here/cpu", "here/gpu"})
LIMITS = ClaimLimits(lambda _: 64, POOLS, sequence_length=16, budget_tokens=BUDGET, bound_steps=SLACK)


def pushed(fragment: int, base_version: int, steps: int, tokens: int) -> PushHeader:
    return PushHeader(WHO, 1, fragment, base_version + 1, 1, base_version, steps, tokens, "BF16", 20, "1")


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
        position = 4 * step if position is None else position
        self.claims.reported(StepReported(learner, 1, step, told, 1.0, 2.0, position))

    def train(self, learner: str, steps_per_second: float, seconds: int) -> None:
        """A learner joins and reports once a second."""
        self.claims.admitted(learner, "process", 0, 0)
        for second in range(seconds):
            self.report(int(steps_per_second * second), learner=learner)
            self.now += 1.0

    async def push(self, steps: int, *, base_version: int = 0) -> None:
        await self.claims.check_steps(pushed(3, base_version, steps, 64 * steps), 0.0)


@pytest.fixture
def account() -> Account:
    return Account()


def test_the_tokens_of_a_step_are_its_pools() -> None:
    pools = [{"name": "cpu"}, {"name": "gpu", "batchSize": 32}]
    spec = small_job(regions=[{"name": "here", "pools": pools}])
    of = tokens_per_step(spec.training, spec.pools)
    assert (of("here/cpu/0"), of("here/gpu/9")) == (4 * 16, 32 * 16)


def train_side_by_side(pool: str) -> None:
    """Two learners of a pool train, one of them 40 times as fast as the other."""
    pools = [{"name": "even"}, {"name": "uneven", "batchSize": "Auto"}]
    now = 1000.0
    spec = small_job(regions=[{"name": "here", "pools": pools}])
    claims = Claims(ClaimLimits.of(spec, spec.pools), lambda: None, lambda: now)
    pair = ((f"here/{pool}/0", 1), (f"here/{pool}/1", 40))
    for learner, _ in pair:
        claims.admitted(learner, "process", 0, 0)
    for second in range(300):
        now += 1.0
        for learner, steps_per_second in pair:
            claims.reported(StepReported(learner, 1, steps_per_second * second, 0, 1.0, 2.0, 0))


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


async def _fails(account: Account, steps: int, base_version: int = 0) -> str:
    with pytest.raises(ClaimError) as caught:
        await account.push(steps, base_version=base_version)
    return str(caught.value)


async def test_a_push_counts_only_steps_reported_since_the_fragment_was_received(account: Account) -> None:
    account.report(110)
    await account.push(10 + SLACK)
    account.claims.received(WHO, 3, 1)
    account.report(120)
    text = await _fails(account, 11 + SLACK, base_version=1)
    assert text == f"{WHO} pushes 71 steps of fragment 3, but has reported 0 since it received version 1"
    # What it was ahead of its reports is not given a second time.
    await account.push(10, base_version=1)


async def test_a_push_measured_from_an_older_version_counts_from_its_own_receipt(account: Account) -> None:
    account.claims.received(WHO, 3, 1)
    account.report(140)
    account.claims.received(WHO, 3, 2)
    account.report(141)
    await account.push(40, base_version=1)
    await _fails(account, 2 + SLACK, base_version=2)
    await account.push(1 + SLACK, base_version=2)


async def test_who_never_says_that_it_received_gains_nothing(account: Account) -> None:
    account.report(110)
    for version in range(10 + SLACK):
        await account.push(1, base_version=version)
    await _fails(account, 1, base_version=10 + SLACK)


async def test_a_push_that_is_asked_for_again_counts_the_same_steps_again(account: Account) -> None:
    account.report(110)
    await account.push(10 + SLACK)
    await account.push(10 + SLACK)


async def test_each_of_the_last_twelve_receipts_counts_by_itself(account: Account) -> None:
    for version in range(1, 13):
        account.now += 1.0
        account.report(100 + 10 * version)
        account.claims.received(WHO, 3, version)
    await _fails(account, 111 + SLACK, base_version=1)
    await account.push(110 + SLACK, base_version=1)


async def test_steps_that_were_pushed_are_not_given_again_after_many_receipts(account: Account) -> None:
    account.report(110)
    await account.push(10 + SLACK)
    for version in range(2, 50):
        account.claims.received(WHO, 3, version)
    await _fails(account, 1, base_version=49)


async def test_a_broken_link_does_not_begin_the_account_anew(account: Account) -> None:
    account.report(110)
    await account.push(10 + SLACK)
    account.claims.admitted(WHO, "process", 110, 440)
    await _fails(account, 1, base_version=1)


def test_a_push_counts_no_more_steps_than_a_learner_makes_on_a_fragment(account: Account) -> None:
    account.claims.check_work(pushed(3, 0, SLACK, 64 * SLACK))
    text = f"pushes 1000000000 steps of fragment 3; at {SLACK} a learner pauses"
    with pytest.raises(ClaimError, match=text):
        account.claims.check_work(pushed(3, 0, 10**9, 64 * 10**9))
    assert account.refused == 1


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


def test_a_join_may_bring_what_was_made_while_nobody_listened(account: Account) -> None:
    account.claims.check_join(WHO, 100 + SLACK, 400 + 4 * SLACK)
    account.claims.admitted(WHO, "process", 100 + SLACK, 400 + 4 * SLACK)
    # But not twice.
    with pytest.raises(ClaimError, match="claims"):
        account.claims.check_join(WHO, 100 + 2 * SLACK, 400)
    most = LIFE // 64 + SLACK
    account.claims.check_join(BESIDE, most, 4 * most)
    for steps, position in ((most + 1, 0), (0, 4 * most + 1)):
        with pytest.raises(ClaimError, match="in this job it can have made"):
            account.claims.check_join(BESIDE, steps, position)
    assert account.refused == 3


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


async def test_what_a_process_that_lost_its_link_comes_back_with_is_known(account: Account) -> None:
    account.report(110)
    account.claims.admitted(WHO, "process", 150, 600)
    await account.push(50 + SLACK)


def test_a_learner_of_no_pool_is_left_to_who_knows_the_learners() -> None:
    claims = Claims(ClaimLimits.of(small_job(), small_job().pools), lambda: None, lambda: 0.0)
    claims.check_join("elsewhere/cpu/0", 2**63 - 1, 2**63 - 1)
    with pytest.raises(ClaimError):
        claims.check_join("here/cpu/0", 2**63 - 1, 0)
