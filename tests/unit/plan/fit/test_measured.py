import math
from dataclasses import replace

import pytest

from diloco.plan.fit.fit import FitKind, fit
from diloco.plan.fit.measured import MeasuredLearner, measured_situation
from diloco.plan.fit.situation import Exchange
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
    use = fit(measured_situation(EXCHANGE, pool, 0.01)).links[0]
    assert use.down_share == pytest.approx(1 / 6)


def test_what_an_answer_takes_beyond_its_payload_is_the_round_trip() -> None:
    far = learner("west/old/0", up_bytes_per_second=80_000.0, answer_seconds=0.35)
    assert measured_situation(EXCHANGE, [far], 0.0).groups[0].link.round_trip_seconds == pytest.approx(0.25)
    odd = replace(far, answer_seconds=0.05)
    assert measured_situation(EXCHANGE, [odd], 0.0).groups[0].link.round_trip_seconds == 0.0


def test_whoever_is_not_measured_counts_as_near() -> None:
    (group,) = measured_situation(EXCHANGE, [learner("west/old/0")], 0.0).groups
    assert (group.link.down_bytes_per_second, group.link.round_trip_seconds) == (math.inf, 0.0)
    assert measured_situation(EXCHANGE, [], 0.0).groups == ()
    assert fit(measured_situation(EXCHANGE, [], 0.0)).kind is FitKind.STEP_TIME_UNKNOWN


def test_a_thin_link_in_a_good_pool_stands_by_itself_and_is_named() -> None:
    pool = [learner(f"west/old/{index}", down_bytes_per_second=10 * NEEDED) for index in range(4)]
    pool[2] = learner("west/old/2", down_bytes_per_second=0.5 * NEEDED)
    found = fit(measured_situation(EXCHANGE, pool, 0.0))
    assert [(group.name, group.learners) for group in found.groups] == [("west/old/2", 1), ("west/old", 3)]
    assert found.kind is FitKind.LINK_TOO_THIN
    assert found.reason.startswith("the link west/old/2 would be used to 200 %")


@pytest.mark.parametrize(("fragments", "pools"), [(24, 64), (256, 64), (512, 32), (3277, 4), (4096, 4), (8192, 4)])
def test_the_largest_pools_are_reckoned_with_as_many_as_fragments_allow(fragments: int, pools: int) -> None:
    crowd = [learner(f"r{index:03}/p/{count}") for index in range(100) for count in range(1 + index // 50)]
    found = measured_situation(replace(EXCHANGE, numels=(10,) * fragments), crowd, 0.0).groups
    largest = [f"r{index:03}/p" for index in (*range(50, 100), *range(50))]
    assert [group.name for group in found] == largest[:pools]


@pytest.mark.parametrize(("fragments", "alone"), [(24, 16), (1024, 4), (4096, 1)])
def test_those_with_the_thinnest_links_stand_by_themselves(fragments: int, alone: int) -> None:
    thin = [learner(f"west/old/{index}", up_bytes_per_second=1.0 + index) for index in range(20)]
    good = [learner(f"west/old/{index}") for index in range(20, 50)]
    found = measured_situation(replace(EXCHANGE, numels=(10,) * fragments), [*good, *reversed(thin)], 0.0).groups
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
