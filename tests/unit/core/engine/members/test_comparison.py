"""With which others a learner is compared, and what follows."""

import pytest

from diloco.core.engine.members.comparison import FACTORS, compare
from diloco.core.engine.records import LearnerRecord
from diloco.core.engine.snapshot import fresh
from diloco.core.engine.state import EngineState
from tests.support.engine_script import options

ALONE, BESIDE_ONE, BESIDE_MORE = FACTORS


def compared(**step_seconds: float | None) -> EngineState:
    """Learners ``POOL_INDEX`` that have reported steps of 100 tokens; None: no step yet."""
    state = fresh(options(), epoch=1)
    state.learners = {}
    for name, seconds in step_seconds.items():
        record = LearnerRecord(f"here/{name.replace('_', '/')}")
        for _ in range(2 if seconds is not None else 0):
            record.pace.add(seconds or 0.0, 1, 100)
        state.learners[record.id] = record
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
    state = compared(cpu_0=1.0, cpu_1=0.5, cpu_2=0.25, gpu_0=0.001)
    assert fastest(state, "cpu/0") == fastest(state, "cpu/1") == pytest.approx(BESIDE_MORE * 4.0)
    assert fastest(state, "cpu/2") == pytest.approx(BESIDE_MORE * 2.0)


def test_one_that_is_slow_or_says_so_lowers_nobodys_limit() -> None:
    assert fastest(compared(cpu_0=1.0, cpu_1=1.0, cpu_2=1e9), "cpu/0") == pytest.approx(BESIDE_MORE)


def test_beside_one_of_its_pool_the_limit_is_wider() -> None:
    state = compared(cpu_0=1.0, cpu_1=0.5, gpu_0=0.001)
    assert fastest(state, "cpu/1") == pytest.approx(BESIDE_ONE)


def test_alone_in_its_pool_a_learner_is_compared_with_the_fastest_of_all() -> None:
    state = compared(cpu_0=1.0, gpu_0=0.1, tpu_0=0.05)
    assert fastest(state, "cpu/0") == pytest.approx(ALONE * 20.0)
    assert fastest(state, "tpu/0") == pytest.approx(ALONE * 10.0)


def test_alone_in_the_job_a_learner_has_no_limit() -> None:
    assert fastest(compared(cpu_0=0.1), "cpu/0") is None


def test_learners_whose_steps_are_not_measured_are_no_measure() -> None:
    state = compared(cpu_0=1.0, cpu_1=1.0, cpu_2=None)
    assert fastest(state, "cpu/0") == pytest.approx(BESIDE_ONE)
    assert fastest(state, "cpu/2") == pytest.approx(BESIDE_MORE)


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
    assert small.credit.report(small.pace, 4, 100) == 4 * BESIDE_MORE // 4
    assert small.credit.tokens == 100.0
