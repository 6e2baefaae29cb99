"""How the inner loop spends its time: steps, pauses, reports; with a counting trainer and a manual clock."""

import logging
from collections.abc import Callable

import pytest

from diloco.core.account.time_spent import TimeSpent
from diloco.learner.exchange.orders import Ending, EndKind
from diloco.learner.training.fragment_trainer import StepResult
from diloco.wire.messages import Progress, StepReport
from tests.support.hand_clock import HandClock
from tests.support.inner_loop import FRAGMENTS, NOW, STEP_TOKENS, LoopBench

Lines = Callable[..., list[str]]
STOPPED = Ending(EndKind.STOPPED, "the steps are made")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """The lines of the log that begin so."""
    caplog.set_level(logging.INFO)

    def found(*beginnings: str) -> list[str]:
        return [text for record in caplog.records if (text := record.getMessage()).startswith(beginnings)]

    return found


def test_a_learner_without_data_waits_until_it_is_dealt_some(clock: HandClock) -> None:
    bench = LoopBench(clock)
    bench.dealt = False

    def deal() -> None:
        clock.now += 5.0
        bench.dealt = True

    bench.wakeup.events = [deal]
    assert bench.run((1.0, False)) == STOPPED
    assert bench.steps == 1
    assert bench.activity.spent().paused == 5.0


def test_work_on_data_that_others_took_answers_no_request(clock: HandClock) -> None:
    bench = LoopBench(clock)
    bench.request(0, 1)
    staged = []

    def look() -> None:
        staged.append(bool(bench.shared.requests._staged))
        bench.jumps = int(bench.steps == 2)

    bench.before_step = look
    bench.run(*[(1.0, False)] * 4)
    assert staged == [False, True, True, False]


def test_every_second_is_reported_as_what_it_was(clock: HandClock) -> None:
    bench = LoopBench(clock, checkpoint_every_steps=2)
    began = clock.now
    bench.said.post_seconds = 0.125
    clock.now += 3.0
    assert (bench.loop.news, bench.loop.step_seconds()) == (None, 0.0)
    assert bench.run((1.0, False), (2.0, False), (4.0, True), (8.0, False)) == STOPPED
    reports = [call[1] for call in bench.said.of("step")]
    # Its order is: copy in, report, post. The time of posting is in the next report.
    assert reports == [
        StepReport(0, 1, 16, 1.0, 2.0, 2, TimeSpent(1.0, looking=0.125, copying=1.5, loading=3.125), 0.0, 0, 1.0, 0.1),
        StepReport(0, 2, 32, 2.0, 2.0, 4, TimeSpent(3.0, 0.0, 0.0, 1.5, 0.25, 0.0, 0.25, 3.125), 0.0, 0, 1.0, 0.1),
        StepReport(0, 3, 48, 8.0, 2.0, 6, TimeSpent(11.0, 4.0, 0.0, 1.5, 0.5, 0.0, 0.25, 3.125), 0.0, 0, 1.0, 0.1),
    ]
    assert bench.loop.news == reports[-1]
    assert bench.loop.step_seconds() == 2.0
    assert bench.activity.spent().wall_seconds == clock.now - began
    assert bench.checkpoints == [2]


def test_a_step_that_spans_a_freeze_is_not_the_usual_one(clock: HandClock) -> None:
    bench = LoopBench(clock)
    bench.run(*[(0.5, False)] * 4, (57.0, False))
    assert bench.loop.step_seconds() == 0.5


def test_a_swap_in_is_told_with_the_step_after_which_it_was_made(clock: HandClock) -> None:
    bench = LoopBench(clock)
    bench.before_step = bench.later((1, 1))
    bench.run((1.0, False), (2.0, False))
    told = bench.said.of("applied")
    assert told == [("applied", NOW, fragment, 0, 0) for fragment in range(FRAGMENTS)] + [("applied", NOW, 1, 1, 1)]


def test_a_step_of_acted_out_hardware_ends_when_that_would_have_made_it(clock: HandClock) -> None:
    bench = LoopBench(clock, speed=0.5)
    bench.wakeup.events = [lambda: bench.passes(0.5), lambda: bench.passes(1.0), lambda: bench.passes(0.5)]
    bench.wakeup.events += [lambda: bench.passes(4.0)]
    bench.run((2.0, False), (2.0, False), (4.0, True), (0.0, False))
    # If it is woken early, it continues to sleep.
    assert bench.wakeup.waits == [2.0, 1.5, 0.5, 4.0]
    assert [call[1].step_seconds for call in bench.said.of("step")] == [2.0, 4.0, 0.0]  # type: ignore[attr-defined]
    assert bench.loop.step_seconds() == 4.0
    spent = bench.activity.spent()
    assert (spent.training, spent.skipped) == (6.0, 8.0)


def test_what_holds_up_one_step_of_acted_out_hardware_is_not_stretched(clock: HandClock) -> None:
    bench = LoopBench(clock, speed=0.25)
    bench.wakeup.events = [lambda: bench.passes(6.0), lambda: bench.passes(12.0)]
    bench.run((2.0, False), (2.0, False), (20.0, False), (0.0, False))
    assert bench.wakeup.waits == [6.0, 12.0]  # not 60


def test_on_a_cpu_what_others_compute_meanwhile_is_not_stretched(
    clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = LoopBench(clock, speed=0.25, on_cpu=True)
    # Before the first step, after each, and before the next, as the thread's CPU time goes.
    computed = iter([5.0, 7.0, 7.5, 9.5, 10.0, 12.0, 12.5, 12.5, 13.0])
    monkeypatch.setattr("diloco.learner.step_times.time.thread_time", lambda: next(computed))
    bench.wakeup.events = [lambda: bench.passes(6.0), lambda: bench.passes(6.0)]
    bench.run((2.0, False), (8.0, False), (2.0, False), (0.0, False))
    assert bench.wakeup.waits == [6.0, 6.0]
    assert [call[1].step_seconds for call in bench.said.of("step")] == [2.0, 14.0, 8.0, 0.0]  # type: ignore[attr-defined]


def test_a_first_step_that_spans_a_freeze_is_not_stretched(clock: HandClock) -> None:
    bench = LoopBench(clock, speed=0.2)
    bench.run((81.78, False), (0.0, False))
    assert bench.wakeup.waits == []


def test_steps_that_are_told_together_count_each(clock: HandClock) -> None:
    bench = LoopBench(clock, checkpoint_every_steps=4)
    bench.loop.begin()
    for _ in range(3):
        bench.make(3)
        bench.passes(6.0)
        bench.loop.after_step(StepResult(2.0, 3 * STEP_TOKENS, 6.0, 1.0, 0.1, skipped=False, steps=3))
    assert bench.checkpoints == [6, 9]
    assert [call[1].step_seconds for call in bench.said.of("step")] == [2.0] * 3  # type: ignore[attr-defined]
    assert bench.loop.step_seconds() == 2.0


def test_a_learner_that_is_asked_to_stop_does_not_act_slow(clock: HandClock) -> None:
    bench = LoopBench(clock, speed=0.5)
    bench.run((2.0, False))
    assert bench.wakeup.waits == []


class TestStalenessBound:
    def test_it_pauses_at_the_bound_until_the_fragment_that_waited_is_here(
        self, clock: HandClock, lines: Lines
    ) -> None:
        bench = LoopBench(clock, staleness_bound_steps=2)
        seen: list[tuple[int, bool, int]] = []

        def event(seconds: float, *received: int) -> None:
            seen.append((bench.steps, bench.loop.paused, len(lines("paused"))))
            bench.passes(seconds)
            for fragment in received:
                bench.receive(fragment, 1)

        bench.wakeup.events = [
            lambda: event(1.0),
            lambda: event(1.0, 0, 2),
            lambda: event(1.0),
            lambda: event(1.0, 1),
        ]
        assert not bench.loop.paused
        assert bench.run(*[(1.0, False)] * 3) == STOPPED
        # After 2 s, of which it copied for 1, it logs this once.
        assert seen == [(2, True, 0), (2, True, 0), (2, True, 1), (2, True, 1)]
        assert bench.wakeup.waits == [1.0] * 4
        assert (bench.steps, bench.loop.paused) == (3, False)
        assert lines("paused", "resumed") == [
            "paused: 2 steps without receiving a fragment, sync.maxStalenessSteps is 2",
            "resumed after a pause of 5.5 s",
        ]
        spent = bench.activity.spent()
        assert (spent.paused, spent.copying) == (4.0, 3.0)

    def test_a_pause_of_less_than_two_seconds_is_not_mentioned(self, clock: HandClock, lines: Lines) -> None:
        bench = LoopBench(clock, staleness_bound_steps=1)

        def arrive() -> None:
            bench.passes(0.25)
            for fragment in range(FRAGMENTS):
                bench.receive(fragment, 1)

        bench.wakeup.events = [arrive]
        bench.run((1.0, False), (1.0, False))
        assert bench.steps == 2
        assert lines("paused", "resumed") == []

    def test_an_end_is_heard_in_a_pause(self, clock: HandClock, lines: Lines) -> None:
        bench = LoopBench(clock, staleness_bound_steps=1)
        bench.wakeup.events = [
            lambda: bench.passes(2.0),
            lambda: bench.shared.orders.end(Ending(EndKind.FINISHED, "enough")),
        ]
        assert bench.run((1.0, False), (1.0, False)) == Ending(EndKind.FINISHED, "enough")
        assert (bench.steps, bench.loop.paused) == (1, False)
        assert lines("paused", "resumed") == [
            "paused: 1 steps without receiving a fragment, sync.maxStalenessSteps is 1"
        ]


class TestProgress:
    def test_a_line_comes_every_thirty_seconds(self, clock: HandClock, lines: Lines) -> None:
        bench = LoopBench(clock, checkpoint_every_steps=1)
        bench.shared.orders.progressed(Progress(25, 100, 0))
        # Three swap-ins of 0.5 s before the first step; a checkpoint of 0.25 s after each.
        bench.run((9.5, False), (18.25, False), (0.0, False), (29.5, False), (1.0, False))
        # Over 30 s: of 48 tokens 1.6 a second; of 32 tokens in 31 s 1.03.
        assert lines("step ") == [
            "step 2, loss 2.0000, 2 tokens/s, job 25.0 %, blocked 5.00 %, evaluations and snapshots 2.50 %",
            "step 4, loss 2.0000, 1 tokens/s, job 25.0 %, blocked 2.46 %, evaluations and snapshots 2.05 %",
        ]

    def test_nothing_is_said_before_a_step_is_reported(self, clock: HandClock, lines: Lines) -> None:
        LoopBench(clock).run((60.0, False))
        assert lines("step ") == []

    def test_tokens_of_before_this_process_are_not_counted_in_its_rate(self, clock: HandClock, lines: Lines) -> None:
        bench = LoopBench(clock, steps_before=1000, staleness_bound_steps=2000)
        bench.run((10.0, False), (22.0, False))
        assert "1 tokens/s" in lines("step ")[0]
