"""With which others a learner is compared, and what follows."""

import sys
from typing import Any

import pytest

from diloco.core.engine.events import PoolTerms
from diloco.core.engine.members.comparison import ALONE, AS_GIVEN, BESIDE_FASTEST, BESIDE_MEDIAN, compare
from diloco.core.engine.records import LearnerRecord
from diloco.core.engine.rounds.averages import StepAverage
from diloco.core.engine.snapshot import fresh
from diloco.core.engine.state import EngineState
from tests.support.engine_script import options


def compared(terms: tuple[PoolTerms, ...] = (), unplanned: tuple[str, ...] = (), **seconds: Any) -> EngineState:
    """Learners ``POOL_INDEX`` that have reported steps of so many seconds and 100 tokens; None: no step yet."""
    ids = [f"here/{name.replace('_', '/')}" for name in seconds]
    state = fresh(options(pools=tuple({one.rpartition("/")[0] for one in ids}), pool_terms=terms), epoch=1)
    state.learners = {one: LearnerRecord(one) for one in ids}
    state.planned = frozenset(ids) - frozenset(unplanned)
    for record, step_seconds in zip(state.learners.values(), seconds.values(), strict=True):
        for _ in range(2 if step_seconds is not None else 0):
            record.pace.add(step_seconds or 0.0, 1, 100)
    compare(state)
    return state


def fastest(state: EngineState, name: str) -> float | None:
    """Steps a second that count of a learner at most; None: there is no limit."""
    credit = state.learners[f"here/{name}"].credit
    if credit.most_tokens_per_second is None:
        assert credit.least_step_seconds == 0.0
        return None
    assert credit.most_tokens_per_second == pytest.approx(100 / credit.least_step_seconds)
    return 1 / credit.least_step_seconds


def test_beside_two_of_its_pool_a_learner_is_little_faster_than_these() -> None:
    state = compared(cpu_0=1.0, cpu_1=0.8, cpu_2=0.5, gpu_0=0.001)
    assert fastest(state, "cpu/0") == fastest(state, "cpu/1") == pytest.approx(BESIDE_FASTEST * 2.0)
    assert fastest(state, "cpu/2") == pytest.approx(BESIDE_FASTEST * 1.25)


@pytest.mark.parametrize("false", [1, 2, 3])
def test_fewer_than_half_of_a_pool_cannot_lift_each_other(false: int) -> None:
    seconds: dict[str, Any] = {f"cpu_{index}": 0.001 if index < false else 1.0 for index in range(8)}
    most = BESIDE_FASTEST if false == 1 else BESIDE_MEDIAN
    assert fastest(compared(**seconds), "cpu/0") == pytest.approx(most)


def test_those_that_are_slow_or_say_so_lower_nobodys_limit() -> None:
    assert fastest(compared(cpu_0=1.0, cpu_1=1.0, cpu_2=1e9), "cpu/0") == pytest.approx(BESIDE_FASTEST)
    state = compared(cpu_0=1.0, cpu_1=1.0, cpu_2=1.0, cpu_3=1e9, cpu_4=1e9)
    assert fastest(state, "cpu/0") == pytest.approx(BESIDE_FASTEST)


def test_beside_one_of_its_pool_the_limit_is_wider() -> None:
    state = compared(cpu_0=1.0, cpu_1=0.5, gpu_0=0.001)
    assert fastest(state, "cpu/1") == pytest.approx(BESIDE_MEDIAN)


def test_beside_those_that_have_left_the_limit_is_wider() -> None:
    state = compared(cpu_0=1.0, cpu_1=1.0, cpu_2=0.8)
    for gone in ("here/cpu/1", "here/cpu/2"):
        state.learners[gone].left_cleanly = True
    compare(state)
    assert fastest(state, "cpu/0") == pytest.approx(BESIDE_MEDIAN * 1.25), "it may have their machine to itself"
    assert fastest(state, "cpu/1") == pytest.approx(BESIDE_MEDIAN * 1.25), "one that trains may be slow or wrong"


def test_alone_in_its_pool_a_learner_is_compared_with_the_median_pool() -> None:
    state = compared(cpu_0=1.0, gpu_0=0.001)
    assert fastest(state, "gpu/0") == pytest.approx(ALONE * 1.0)
    state = compared(a_0=1.0, a_1=1.0, a_2=1.0, b_0=0.25, b_1=0.25, b_2=0.25, c_0=0.001)
    assert fastest(state, "c/0") == pytest.approx(2 * 6 / (7 - 2) * 2.5), "twice its share is less than 4 times 4.0"


def test_a_pool_alone_counts_as_twice_its_planned_share_at_most() -> None:
    state = compared(a_0=1.0, b_0=1.0, c_0=1.0, d_0=0.001)
    assert fastest(state, "d/0") == pytest.approx(3.0)
    assert fastest(state, "d/0") == 2 / 4 * (3 * 1.0 + 3.0)
    many: dict[str, Any] = {f"a_{index}": 1.0 for index in range(98)}
    state = compared(**many, b_0=0.001, c_0=0.001)
    for _ in range(9):  # each counts as part of what the other is compared with
        compare(state)
    assert fastest(state, "b/0") == fastest(state, "c/0") == pytest.approx(2.0, rel=0.05)


def test_a_slow_pool_lowers_the_limits_of_two_others_no_more() -> None:
    state = compared(a_0=1.0, b_0=1.0, c_0=1e9)
    assert fastest(state, "a/0") == pytest.approx(2.0, rel=0.01), "half of the others' share is not made"


def test_speeds_in_the_manifest_take_the_place_of_the_wide_limit() -> None:
    terms = (PoolTerms("here/gpu", speed=8.0), PoolTerms("here/cpu"))
    state = compared(terms, cpu_0=1.0, cpu_1=1.0, gpu_0=0.125, gpu_1=0.001)
    assert fastest(state, "gpu/1") == pytest.approx(AS_GIVEN * 8.0), "two of its pool cannot lift each other"
    assert fastest(state, "cpu/0") == pytest.approx(BESIDE_MEDIAN)
    equal = (PoolTerms("here/gpu", speed=1.0), PoolTerms("here/cpu", speed=1.0))
    assert fastest(compared(equal, cpu_0=1.0, gpu_0=0.001), "gpu/0") == pytest.approx(AS_GIVEN)


def test_pools_of_other_batches_are_compared_by_what_these_allow() -> None:
    state = compared((PoolTerms("here/big", 64), PoolTerms("here/small", 8)), big_0=8.0, small_0=None)
    credit = state.learners["here/small/0"].credit
    assert credit.least_step_seconds == pytest.approx(1.0 / ALONE)
    assert credit.most_tokens_per_second == pytest.approx(ALONE * 12.5)
    assert credit.most_tokens_per_step == pytest.approx(ALONE * 12.5)


def test_alone_in_the_job_a_learner_has_no_limit() -> None:
    assert fastest(compared(cpu_0=0.1), "cpu/0") is None


def test_unplanned_learners_are_compared_with_others_and_no_measure() -> None:
    state = compared(unplanned=("here/cpu/2", "here/cpu/3"), cpu_0=1.0, cpu_1=1.0, cpu_2=0.001, cpu_3=0.001)
    assert fastest(state, "cpu/0") == pytest.approx(BESIDE_MEDIAN)
    assert fastest(state, "cpu/2") == pytest.approx(BESIDE_FASTEST)


def test_learners_whose_steps_are_not_measured_are_no_measure() -> None:
    state = compared(cpu_0=1.0, cpu_1=1.0, cpu_2=None)
    assert fastest(state, "cpu/0") == pytest.approx(BESIDE_MEDIAN)
    assert fastest(state, "cpu/2") == pytest.approx(BESIDE_FASTEST)


def test_until_a_new_process_is_measured_others_are_compared_with_the_last() -> None:
    state = compared(cpu_0=1.0, cpu_1=1.0, cpu_2=1.0)
    for index in (1, 2):
        record = state.learners[f"here/cpu/{index}"]
        record.earlier, record.pace = record.pace, StepAverage()
    compare(state)
    assert fastest(state, "cpu/0") == pytest.approx(BESIDE_FASTEST)


def test_a_first_step_which_may_compile_is_no_measure() -> None:
    state = compared(cpu_0=1.0, cpu_1=None, cpu_2=None)
    for index in (1, 2):
        state.learners[f"here/cpu/{index}"].pace.add(300.0, 1, 100)
    compare(state)
    assert fastest(state, "cpu/0") is None


def test_batches_that_differ_are_compared_by_their_tokens() -> None:
    state = compared(cpu_0=1.0, cpu_1=1.0, cpu_2=None)
    small = state.learners["here/cpu/2"]
    for _ in range(2):
        small.pace.add(0.25, 1, 25)
    compare(state)
    assert small.tokens_per_second == 100.0
    assert small.credit.report(small.pace, 4, 100) == int(4 * BESIDE_FASTEST) // 4
    assert small.credit.tokens == 100.0


def test_the_work_of_a_look_does_not_grow_with_the_square_of_pools() -> None:
    def calls(pools: int) -> int:
        seconds: dict[str, Any] = {f"p{index}_0": 1.0 + index for index in range(pools)}
        state = compared(**seconds)
        count = 0

        def note(_frame: object, what: str, _: object) -> None:
            nonlocal count
            count += what in ("call", "c_call")

        sys.setprofile(note)
        try:
            compare(state)
        finally:
            sys.setprofile(None)
        return count

    assert calls(128) < 5 * calls(32)
