import math
from dataclasses import replace

import pytest

from diloco.plan.situation import Exchange
from diloco.plan.verdict import FitKind, judge
from diloco.syncer.peers.measured_links import MOST_BY_THEMSELVES, MOST_POOLS, MeasuredLearner, measured_situation
from tests.support.situations import EVEN, NEEDED

EXCHANGE = Exchange(EVEN, 24, None, None, 1, "BF16", "F32")


def learner(name: str, **known: float) -> MeasuredLearner:
    return MeasuredLearner(name, 0.5, 64.0, **known)


def test_learners_of_a_pool_are_one_group_with_their_median() -> None:
    rates = [2.0, 3.0, 100.0]
    pool = [
        learner(f"west/old/{index}", up_bytes_per_second=rate * NEEDED, down_bytes_per_second=2 * rate * NEEDED)
        for index, rate in enumerate(rates)
    ]
    (group,) = measured_situation(EXCHANGE, pool, 0.01).groups
    assert (group.name, group.learners, group.step_seconds, group.tokens_per_step) == ("west/old", 3, 0.5, 64.0)
    assert group.link.up_bytes_per_second == 3 * 3 * NEEDED
    use = judge(measured_situation(EXCHANGE, pool, 0.01), None).links[0]
    assert use.down_share == pytest.approx(1 / 6)


def test_a_link_that_is_not_measured_counts_as_unlimited() -> None:
    (group,) = measured_situation(EXCHANGE, [learner("west/old/0")], 0.0).groups
    assert group.link.down_bytes_per_second == math.inf
    assert measured_situation(EXCHANGE, [], 0.0).groups == ()
    assert judge(measured_situation(EXCHANGE, [], 0.0), None).kind is FitKind.STEP_TIME_UNKNOWN


def test_a_thin_link_in_a_good_pool_stands_by_itself_and_is_named() -> None:
    pool = [learner(f"west/old/{index}", down_bytes_per_second=10 * NEEDED) for index in range(4)]
    pool[2] = learner("west/old/2", down_bytes_per_second=0.5 * NEEDED)
    situation = measured_situation(EXCHANGE, pool, 0.0)
    found = judge(situation, None)
    assert [(group.name, group.learners) for group in situation.groups] == [("west/old/2", 1), ("west/old", 3)]
    assert found.kind is FitKind.LINK_TOO_THIN
    assert found.reason.startswith("the link west/old/2 would be used to 200 %")


def test_the_largest_pools_are_considered() -> None:
    crowd = [learner(f"r{index:03}/p/{count}") for index in range(100) for count in range(1 + index // 50)]
    found = measured_situation(EXCHANGE, crowd, 0.0).groups
    largest = [f"r{index:03}/p" for index in (*range(50, 100), *range(50))]
    assert [group.name for group in found] == largest[:MOST_POOLS]


def test_those_with_the_thinnest_links_stand_by_themselves() -> None:
    thin = [learner(f"west/old/{index}", up_bytes_per_second=1.0 + index) for index in range(20)]
    good = [learner(f"west/old/{index}") for index in range(20, 50)]
    found = measured_situation(EXCHANGE, [*good, *reversed(thin)], 0.0).groups
    alone = MOST_BY_THEMSELVES
    assert [group.name for group in found] == [*(f"west/old/{index}" for index in range(alone)), "west/old"]
    assert found[-1].learners == 50 - alone


def test_links_are_held_against_the_fastest_learners_steps() -> None:
    slow = [replace(learner(f"east/new/{index}"), step_seconds=5.0) for index in range(2)]
    pool = [learner("west/old/0", down_bytes_per_second=0.9 * NEEDED), *(learner(f"west/old/{n}") for n in (1, 2))]
    found = measured_situation(EXCHANGE, [*slow, *pool], 0.0).groups
    assert [group.name for group in found] == ["west/old/0", "west/old", "east/new"]


def test_a_link_that_is_just_full_is_not_too_thin() -> None:
    exchange = replace(EXCHANGE, numels=(2375,), interval=20)  # 9,500 bytes in 10 s
    for rates in ((1000.0, math.inf, math.inf), (500.0, 1000.0, 1000.0)):
        pool = [learner(f"west/old/{n}", down_bytes_per_second=rate) for n, rate in enumerate(rates)]
        found = measured_situation(exchange, pool, 0.0).groups
        thin = ["west/old/0"] if rates[0] < 1000 else []
        assert [group.name for group in found] == [*thin, "west/old"]


def test_a_rate_of_nothing_is_none_that_was_measured() -> None:
    pool = [learner("west/old/0", up_bytes_per_second=0.0), learner("west/old/1", up_bytes_per_second=1e6)]
    assert measured_situation(EXCHANGE, pool, 0.0).groups[-1].link.up_bytes_per_second == 2e6
