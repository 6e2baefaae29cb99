"""What learners claim, what none of the job can claim, and how long their steps are measured to take."""

import pytest

from diloco.core.engine.actions import Admit
from diloco.core.engine.engine import Progress
from diloco.core.engine.events import StepReported
from diloco.syncer.peers.claims import ClaimError, ClaimLimits, Claims, tokens_per_step
from diloco.wire.messages import Join, PushHeader
from tests.support.small_job import small_job

WHO = "here/cpu/0"
BOUND = 60
LIFE = 6_400_000
"""Tokens that a learner can have trained before it joins."""
LIMITS = ClaimLimits(lambda _: 64, bound_steps=BOUND, life_tokens=lambda: LIFE, sequence_length=16)


def pushed(steps: int, tokens: int) -> PushHeader:
    return PushHeader(WHO, 1, 3, 1, 1, 0, steps, tokens, "BF16", 20, "1")


class Account:
    """One learner's claims, and how many were refused."""

    def __init__(self) -> None:
        self.refused = 0
        self.now = 1000.0
        self.claims = Claims(LIMITS, self._count, lambda: self.now)
        self.admit("process")

    def _count(self) -> None:
        self.refused += 1

    def admit(self, instance: str, steps: int = 100, reported: int = 100) -> None:
        counts = (steps, 4 * steps, reported, 64 * reported)
        self.claims.admitted(Admit(WHO, instance, 1, (), (), *counts, "it is planned"))

    def report(self, step: int, tokens: int | None = None, seconds: float = 1.0, after: float = 0.0) -> StepReported:
        """What counts of a report that comes ``after`` seconds."""
        self.now += after
        told = 64 * step if tokens is None else tokens
        return self.claims.reported(StepReported(WHO, 1, step, told, seconds, 2.0, 4 * step))


@pytest.fixture
def account() -> Account:
    return Account()


def test_the_tokens_of_a_step_are_its_pools() -> None:
    pools = [{"name": "cpu"}, {"name": "gpu", "batchSize": 32}]
    spec = small_job(regions=[{"name": "here", "pools": pools}])
    of = tokens_per_step(spec.training, spec.pools)
    assert (of("here/cpu/0"), of("here/gpu/9")) == (4 * 16, 32 * 16)


def test_reports_may_be_coalesced_and_steps_skipped(account: Account) -> None:
    account.report(101)
    account.report(150)
    account.report(151, 64 * 150)
    account.admit("process", 151, 151)
    assert account.report(151, 64 * 150).tokens == 64 * 150


@pytest.mark.parametrize(
    ("step", "tokens", "told"),
    [
        (119, 64 * 120, "reports step 119 with 7680 tokens after step 120 with 7680: neither may go back"),
        (121, 64 * 119, "neither may go back"),
        (121, 64 * 121 + 1, "claims 65 tokens in 1 steps; a step of its pool has 64"),
        (120, 64 * 120 + 1, "claims 1 tokens in 0 steps"),
    ],
)
def test_a_report_of_more_than_can_be_is_refused(account: Account, step: int, tokens: int, told: str) -> None:
    account.report(120)
    with pytest.raises(ClaimError, match=told):
        account.report(step, tokens)
    assert account.refused == 1


def test_a_new_process_counts_from_where_it_was_let_in(account: Account) -> None:
    account.report(120)
    account.admit("another", 120, 120)
    assert account.report(91).tokens == 64 * 91


def test_tokens_that_a_first_report_has_too_many_do_not_count(account: Account) -> None:
    assert account.report(101, 10**15).tokens == 6464
    assert account.report(103, 10**15 + 128).tokens == 6592
    with pytest.raises(ClaimError, match="neither may go back"):
        account.report(104, 10**15)


def test_steps_made_without_a_session_are_reported_with_their_tokens(account: Account) -> None:
    account.report(101)
    account.admit("process", 150)  # as it said when it joined again
    assert account.report(151).tokens == 64 * 151


def test_steps_made_while_the_syncer_was_away_have_their_tokens() -> None:
    account = Account()
    account.admit("another", 150)  # of which a checkpoint knows 100
    assert account.report(151).tokens == 64 * 151


@pytest.mark.parametrize(
    ("steps", "tokens", "told"),
    [
        (10**9, 64 * 10**9, f"pushes 1000000000 steps of fragment 3; at {BOUND} a learner pauses"),
        (2, 129, "claims 129 tokens in 2 steps; a step of its pool has 64"),
    ],
)
def test_a_push_of_more_than_can_be_is_refused(account: Account, steps: int, tokens: int, told: str) -> None:
    account.claims.check_work(pushed(BOUND, 64 * BOUND))
    with pytest.raises(ClaimError, match=told):
        account.claims.check_work(pushed(steps, tokens))
    assert account.refused == 1


def test_no_learner_has_trained_a_hundred_times_the_job_before(account: Account) -> None:
    account.claims.check_join(Join("job", WHO, "process", "", steps=LIFE, data_position=LIFE // 16))
    for steps, position in ((LIFE + 1, 0), (0, LIFE // 16 + 1)):
        with pytest.raises(ClaimError, match=f"in this job it can have trained {LIFE} tokens"):
            account.claims.check_join(Join("job", WHO, "process", "", steps=steps, data_position=position))


@pytest.mark.parametrize(("merged", "budget", "most"), [(5.0, 1000, 100_000), (2000.0, 1000, 200_000)])
def test_the_most_a_learner_can_have_trained_follows_the_budget(merged: float, budget: int, most: int) -> None:
    assert ClaimLimits.of(small_job(), {}, lambda: Progress(merged, budget, 1)).life_tokens() == most


def trained(claimed: float, *, every_seconds: float = 0.4, at_once: int = 1) -> list[float]:
    """What counts of what a learner says of its steps, in reports of one step each, several ``at_once``."""
    account = Account()
    account.now += 50.0
    found = []
    for number in range(40):
        after = every_seconds * at_once if number % at_once == 0 else 0.0
        found.append(account.report(101 + number, seconds=claimed, after=after).step_seconds)
    return found[1:]


def test_what_a_learner_says_of_its_steps_counts_within_limits() -> None:
    assert trained(0.3) == [0.3] * 39
    assert trained(0.0) == pytest.approx([0.2] * 39)
    assert trained(1e9) == pytest.approx([0.4] * 39)


def test_reports_that_are_held_back_and_sent_at_once_hide_no_time() -> None:
    assert min(trained(0.0, at_once=5)[10:]) > 0.1
    assert max(trained(1e9, at_once=5)[10:]) < 1.0


@pytest.mark.parametrize(("claimed", "counts"), [(3.0, 3.0), (1e9, 5.0)])
def test_a_first_step_takes_at_most_as_long_as_the_session(account: Account, claimed: float, counts: float) -> None:
    assert account.report(101, seconds=claimed, after=5.0).step_seconds == counts


def test_a_report_of_many_steps_is_measured_as_such(account: Account) -> None:
    account.report(101)
    assert account.report(201, seconds=0.0, after=40.0).step_seconds == pytest.approx(0.2)
    assert account.report(202, seconds=9.0, after=0.4).step_seconds == pytest.approx(0.4)


def test_the_time_without_a_session_is_not_measured(account: Account) -> None:
    for step in (101, 102, 103):
        account.report(step, seconds=0.4, after=0.4)
    account.admit("process", 110)
    assert account.report(111, seconds=0.4, after=1060.0).step_seconds == pytest.approx(0.4)
    assert account.report(112, seconds=9.0, after=0.4).step_seconds == pytest.approx(0.4)


@pytest.mark.parametrize("instance", ["process", "another"])
def test_joining_again_and_again_leaves_no_time_for_steps(account: Account, instance: str) -> None:
    account.report(101, after=1.0)
    account.report(102, after=1.0)
    account.admit(instance, 102, 102)
    assert account.report(202, after=2.0).step_seconds == pytest.approx(0.02)
