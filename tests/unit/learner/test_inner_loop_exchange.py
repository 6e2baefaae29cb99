"""How the inner loop meets the exchange: it loads, swaps in, answers and evaluates."""

import logging

import pytest

from diloco.learner.exchange.link import Position
from diloco.learner.exchange.orders import Ending, EndKind, EvaluationOrder, Membership
from diloco.wire.messages import EvaluationWanted
from tests.support.hand_clock import HandClock
from tests.support.inner_loop import FRAGMENTS, NOW, LoopBench

REJOINED, RESTARTED = Membership("1", 8), Membership("2", 1)


@pytest.fixture
def bench(clock: HandClock) -> LoopBench:
    """An inner loop that has loaded version 0 of everything, and has put no message yet."""
    made = LoopBench(clock)
    made.loop.between_steps()
    made.said.take()
    return made


def sent(bench: LoopBench) -> list[tuple[int, int, int]]:
    """Fragment, version and steps of each outer gradient that the workers got."""
    return [(one.request.fragment, one.request.version, one.capture.steps) for one in bench.said.offered]


def asked(bench: LoopBench, fragment: int, version: int, membership: Membership = NOW) -> None:
    """An outer gradient is requested, and the loop sees it."""
    bench.request(fragment, version, membership)
    bench.loop.between_steps()


def told_to_evaluate(bench: LoopBench, *versions: int, final: bool = False) -> None:
    """An evaluation is ordered, and the loop sees it."""
    bench.shared.orders.evaluate(EvaluationOrder(NOW, EvaluationWanted(4, versions, final)))
    bench.loop.between_steps()


class TestLoading:
    def test_it_waits_for_the_last_fragment_and_posts_what_it_says(self, clock: HandClock) -> None:
        bench = LoopBench(clock, loaded=False)
        bench.wakeup.events = [bench.later((2, 4)), bench.later((0, 3), (1, 3))]
        bench.run()
        assert bench.wakeup.waits == [1.0, 1.0]
        assert bench.said.calls == [
            ("post",),
            ("applied", NOW, 2, 4, 0),
            ("post",),
            ("applied", NOW, 0, 3, 0),
            ("applied", NOW, 1, 3, 0),
            ("ready", NOW),
            ("post",),
            ("post",),
        ]

    def test_a_restarted_learner_receives_at_the_step_that_the_syncer_knows(self, clock: HandClock) -> None:
        bench = LoopBench(clock, loaded=False, steps_before=3)
        bench.known = Position(5, 10)
        bench.wakeup.events = [bench.later((2, 4)), bench.later((0, 3), (1, 3))]
        bench.run()
        assert [call[4] for call in bench.said.of("applied")] == [5, 5, 5]

    def test_it_takes_up_its_checkpoint_once_and_before_any_fragment(self, clock: HandClock) -> None:
        bench = LoopBench(clock, loaded=False)
        bench.membership = None

        def welcomed() -> None:
            bench.membership = NOW

        bench.wakeup.events = [welcomed, bench.later((2, 4)), bench.later((0, 3), (1, 3))]
        bench.run((1.0, False))
        assert bench.took_up == [(0, 0, 0)]

    def test_an_end_is_heard_while_it_waits(self, clock: HandClock) -> None:
        bench = LoopBench(clock, loaded=False)
        over = Ending(EndKind.FINISHED, "enough")
        bench.wakeup.events = [lambda: bench.shared.orders.end(over)]
        assert bench.run((1.0, False)) == over
        assert bench.steps == 0

    @pytest.mark.parametrize(
        ("known", "forgets", "goes_on_after"),
        [
            (None, 0, (5, 10)),
            (Position(4, 8), 0, (5, 10)),
            (Position(5, 10), 0, (5, 10)),
            (Position(5, 12), 0, (5, 12)),
            (Position(6, 12), 1, (6, 12)),
        ],
    )
    def test_it_resumes_at_the_syncers_position_and_drops_older_residuals(
        self, clock: HandClock, known: Position | None, forgets: int, goes_on_after: tuple[int, int]
    ) -> None:
        bench = LoopBench(clock, steps_before=5)
        bench.known = known
        bench.run()
        assert bench.forgotten == forgets
        assert (bench.steps, bench.data_position) == goes_on_after

    def test_how_long_it_took_is_told(self, clock: HandClock, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        bench = LoopBench(clock, loaded=False, steps_before=5)
        bench.wakeup.events = [bench.later(*((index, 1) for index in range(FRAGMENTS)), seconds=2.0)]
        bench.run()
        (line,) = [record.getMessage() for record in caplog.records]
        assert line == "loaded the model in 3.5 s; starting after step 5, data position 10"


class TestSwapIn:
    @pytest.mark.parametrize(
        ("membership", "told"),
        [(NOW, [("applied", NOW, 1, 6, 0)]), (REJOINED, [("applied", REJOINED, 1, 6, 0)]), (RESTARTED, []), (None, [])],
    )
    def test_it_is_told_to_the_syncer_that_made_it(
        self, bench: LoopBench, membership: Membership | None, told: list[object]
    ) -> None:
        bench.membership = membership
        bench.receive(1, 6)
        bench.loop.between_steps()
        assert bench.said.of("applied") == told
        assert bench.versions == (0, 6, 0)

    def test_a_version_that_is_held_is_not_swapped_in_again(self, bench: LoopBench) -> None:
        bench.receive(1, 0)
        bench.loop.between_steps()
        assert bench.said.take() == [("post",)]


class TestAnswers:
    def test_an_ask_is_answered_with_the_steps_since_the_fragment_came(self, bench: LoopBench) -> None:
        bench.make(1)
        asked(bench, 1, 3)
        assert sent(bench) == [(1, 3, 1)]
        assert bench.said.calls == [("post",)]

    def test_who_has_made_no_step_since_declines(self, bench: LoopBench) -> None:
        asked(bench, 1, 3)
        assert sent(bench) == []
        assert bench.said.calls == [("declined", NOW, 1, 3, 1), ("post",)]

    def test_an_ask_of_another_admission_is_passed_over(self, bench: LoopBench) -> None:
        bench.make(1)
        asked(bench, 1, 3, REJOINED)
        assert (sent(bench), bench.said.calls) == ([], [("post",)])

    def test_of_one_version_received_no_two_are_answered(self, bench: LoopBench) -> None:
        bench.make(2)
        asked(bench, 1, 3)
        asked(bench, 1, 4)
        assert sent(bench) == [(1, 3, 2)]
        bench.receive(1, 3)
        bench.loop.between_steps()
        bench.make(1)
        bench.loop.between_steps()
        # As soon as the version has arrived, which is before there is a step to send.
        assert bench.said.of("declined") == [("declined", NOW, 1, 4, 1)]
        asked(bench, 1, 5)
        assert sent(bench) == [(1, 3, 2), (1, 5, 1)]

    def test_the_next_fragment_is_staged_after_a_step_and_answered_at_once(self, clock: HandClock) -> None:
        bench = LoopBench(clock)
        answers: list[int | None] = []

        asked = iter((2, 0, 1))
        bench.before_step = lambda: answers.append(bench.request(next(asked), 1)[1])
        bench.run(*[(1.0, False)] * 3)
        # Nothing is staged before it is known which fragment comes next; that one is staged after the next step.
        assert answers == [None, 1, 2]

    def test_a_fragment_that_has_just_come_is_not_laid_out(self, clock: HandClock) -> None:
        bench = LoopBench(clock)
        bench.request(0, 3)
        bench.before_step = bench.later((1, 3))
        bench.run((1.0, False))
        bench.loop.between_steps()
        assert bench.request(1, 4)[1] is None

    def test_nothing_is_laid_out_where_no_step_was_made(self, bench: LoopBench) -> None:
        bench.request(0, 3)
        bench.make(1)
        bench.loop.between_steps()
        assert bench.request(1, 3)[1] is None


class TestEvaluation:
    @pytest.mark.parametrize(
        ("wanted", "final", "exact"),
        [
            ((1, 1, 1), True, True),
            ((1, 1, 1), False, True),
            ((1, 2, 1), True, None),
            ((2, 2, 2), True, None),
            ((1, 2, 1), False, False),
            ((1, 0, 1), True, False),
        ],
    )
    def test_it_is_made_of_what_is_held_but_a_final_one_waits_for_its_versions(
        self, bench: LoopBench, wanted: tuple[int, ...], *, final: bool, exact: bool | None
    ) -> None:
        for fragment in range(FRAGMENTS):
            bench.receive(fragment, 1)
        told_to_evaluate(bench, *wanted, final=final)
        assert bench.said.of("evaluated") == ([] if exact is None else [("evaluated", NOW, 4, 2.5, exact)])
        if exact is None:
            for fragment, version in enumerate(wanted):
                bench.receive(fragment, version)
            bench.loop.between_steps()
            assert bench.said.of("evaluated") == [("evaluated", NOW, 4, 2.5, True)]
        # It is sent at once.
        assert [call[0] for call in bench.said.calls[-2:]] == ["evaluated", "post"]
        assert bench.activity.spent().evaluating == 3.0

    def test_a_final_one_waits_for_a_fragment_that_is_not_held_at_all(self, bench: LoopBench) -> None:
        bench.shared.holdings.admitted(NOW, [1])
        told_to_evaluate(bench, 0, 0, 0, final=True)
        assert bench.said.of("evaluated") == []

    @pytest.mark.parametrize("membership", [REJOINED, None])
    def test_nobody_evaluates_for_an_admission_that_is_over(
        self, bench: LoopBench, membership: Membership | None
    ) -> None:
        bench.membership = membership
        told_to_evaluate(bench, 0, 0, 0)
        assert bench.said.calls == [("post",)]

    def test_how_long_it_took_is_told(self, bench: LoopBench, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        told_to_evaluate(bench, 0, 0, 0)
        (line,) = [record.getMessage() for record in caplog.records]
        assert line == "evaluated the global model in 3.0 s: loss 2.5000"
