"""The inner loop of steps whose numbers are late: what it does meanwhile, and what it says once they are known."""

import pytest

from diloco.learner.exchange.orders import EndKind
from diloco.wire.messages import StepReport
from tests.support.hand_clock import HandClock
from tests.support.inner_loop import NOW, STEP_TOKENS, LoopBench


def test_what_is_reported_is_the_same_as_with_numbers_at_once(clock: HandClock) -> None:
    reports: list[list[tuple[int, int, float]]] = []
    for late in (False, True):
        bench = LoopBench(clock, checkpoint_every_steps=2)
        assert bench.run((1.0, False), (2.0, False), (4.0, True), (8.0, False), late=late).kind is EndKind.STOPPED
        said = [call[1] for call in bench.said.of("step")]
        reports.append([(one.step, one.tokens, one.step_seconds) for one in said if isinstance(one, StepReport)])
        assert bench.checkpoints == [2]
        assert (bench.activity.spent().training, bench.activity.spent().skipped) == (11.0, 4.0)
    assert reports[0] == reports[1] == [(1, STEP_TOKENS, 1.0), (2, 2 * STEP_TOKENS, 2.0), (3, 3 * STEP_TOKENS, 8.0)]


def test_a_swap_in_during_a_step_blocks_nothing_and_is_told_after_it(clock: HandClock) -> None:
    bench = LoopBench(clock)
    bench.steps_to_make = [(2.0, False)]
    bench.loop.begin()
    before = bench.activity.spent()
    bench.said.take()
    late = bench.begin(0.0)
    bench.receive(1, 1)
    result = bench.loop._settled(late)
    assert [bench.fragment_steps(fragment) for fragment in range(3)] == [1, 0, 1]
    assert bench.said.calls == []
    bench.loop.after_step(result)
    assert bench.said.of("applied") == [("applied", NOW, 1, 1, 1)]
    spent = bench.activity.spent()
    assert (spent.copying - before.copying, spent.training - before.training) == (0.0, 2.5)


@pytest.mark.parametrize(("skipped", "covers"), [(False, 2), (True, 1)])
def test_what_is_copied_out_during_a_step_counts_it_unless_it_is_skipped(
    clock: HandClock, *, skipped: bool, covers: int
) -> None:
    bench = LoopBench(clock)
    bench.request(0, 1)
    bench.run((1.0, False), (1.0, skipped), late=True)
    _, steps = bench.request(1, 1)
    assert steps == covers


def test_what_is_copied_out_and_then_received_answers_no_request(clock: HandClock) -> None:
    bench = LoopBench(clock)
    bench.loop.begin()
    bench.request(0, 1)
    bench.steps_to_make = [(1.0, False)]
    made = bench.loop._settled(bench.begin(0.0))
    assert list(bench.loop._early) == [1, 2]
    bench.receive(1, 1)
    bench.loop.after_step(made)
    assert list(bench.shared.requests._staged) == [2]
