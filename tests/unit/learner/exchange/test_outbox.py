"""What the training thread hands over: putting never waits, the newest message wins, and totals are not lost."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

from diloco.core.account.time_spent import TimeSpent
from diloco.learner.exchange.orders import Membership
from diloco.learner.exchange.outbox import Outbox
from diloco.learner.exchange.requests import GradientRequest, OuterGradient
from diloco.learner.training.capture import Capture
from diloco.runtime.process.busy import Moved
from diloco.wire.errors import UnavailableError
from diloco.wire.messages import Alive, Applied, Declined, EvaluationReport, LearnerMessage, Leave, Ready, StepReport
from tests.support.hand_loop import HandLoop

NOW = Membership("1", 7)
NEXT = Membership("1", 8)


class Recorder:
    """A session that keeps what is sent, while its connection takes it."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.sent: list[LearnerMessage] = []
        self.takes = asyncio.Event()
        self.takes.set()
        self._meanwhile = meanwhile

    async def send(self, message: LearnerMessage) -> None:
        await self.takes.wait()
        self.sent.append(message)
        self._meanwhile()


def breaks() -> None:
    raise UnavailableError("broken")


def news(step: int) -> StepReport:
    return StepReport(0, step, 10 * step, 0.5, 2.0, step)


class Alone:
    """An outbox whose loop is run by the test. A session has begun."""

    def __init__(self) -> None:
        self.loop = HandLoop()
        self.received = Moved()
        self.outbox = Outbox(5.0, lambda: self.received)
        self.outbox.wake = lambda: self.loop.call_soon(self.outbox.deliver)
        self.session = Recorder()
        self.begins(self.session, NOW)

    def begins(self, session: Recorder, membership: Membership) -> None:
        """Begin this session; the task of one before ends."""
        if not self.loop.is_running():
            self.loop.work()
        self.outbox.session_begins(membership)
        self.loop.create_task(self.outbox.run(session, membership))

    def works(self, *calls: Callable[[], object], seconds: float = 1.0) -> list[LearnerMessage]:
        """Put these at once, and let the loop run for so long; returns all that the first session got so far."""
        for call in calls:
            call()
        self.outbox.post()
        self.loop.work(seconds)
        return self.session.sent


@pytest.fixture
def alone() -> Alone:
    return Alone()


class TestItsLoop:
    def test_it_sends_what_is_put_once_there_is_a_session(self, alone: Alone) -> None:
        outbox, session = alone.outbox, alone.session
        outbox.session_over()
        assert alone.works(lambda: outbox.step(news(1)), lambda: outbox.ready(NOW)) == []
        alone.begins(session, NOW)
        alone.works(lambda: outbox.ready(NOW))
        alone.works(lambda: outbox.evaluated(NOW, 3, 2.5, exact=True))
        assert session.sent == [
            StepReport(7, 1, 10, 0.5, 2.0, 1),
            Ready(7),
            EvaluationReport(7, 3, 2.5, exact=True),
        ]

    def test_it_is_silent_for_no_longer_than_it_may(self, alone: Alone) -> None:
        alone.works(seconds=4.0)
        assert alone.works(lambda: alone.outbox.ready(NOW), seconds=4.5) == [Ready(7)]
        assert alone.works(seconds=1.0) == [Ready(7), Alive(7)]
        assert alone.works(seconds=10.5) == [Ready(7)] + [Alive(7)] * 3

    def test_an_outer_gradient_alone_is_no_message(self, alone: Alone) -> None:
        pushed: list[OuterGradient] = []
        alone.outbox.push = pushed.append
        capture = Capture(0, 4, 1, 1, torch.zeros(1), torch.zeros(1), None)
        gradient = OuterGradient(GradientRequest(NOW, 0, 5, 1), capture)
        alone.works(seconds=4.0)
        assert alone.works(lambda: alone.outbox.answer(gradient), seconds=1.5) == [Alive(7)]
        assert pushed == [gradient]

    def test_what_a_connection_does_not_take_is_replaced_by_what_is_newer(self, alone: Alone) -> None:
        alone.session.takes.clear()
        for step in range(1, 100):
            alone.works(partial(alone.outbox.step, news(step)), seconds=0.01)
        alone.session.takes.set()
        sent = alone.works()
        assert [message.step for message in sent if isinstance(message, StepReport)] == [1, 99]

    def test_a_broken_session_is_not_used_again(self, alone: Alone) -> None:
        broken = Recorder(breaks)
        alone.outbox.session_over()
        alone.begins(broken, NOW)
        alone.works(lambda: alone.outbox.ready(NOW))
        alone.works(lambda: alone.outbox.ready(NOW))
        assert alone.loop.result_of(alone.outbox.flush()) is False
        assert broken.sent == [Ready(7)]

    def test_a_session_that_breaks_while_the_next_begins_does_not_end_the_next(self, alone: Alone) -> None:
        def begins_the_next() -> None:
            alone.outbox.session_over()
            alone.begins(alone.session, NEXT)
            breaks()

        alone.outbox.session_over()
        alone.begins(Recorder(begins_the_next), NOW)
        alone.works(lambda: alone.outbox.ready(NOW))
        assert alone.works(lambda: alone.outbox.ready(NEXT)) == [Ready(8)]


class TestWhatIsSent:
    def test_unsent_steps_become_one_report_of_the_newest_as_it_stands(self, alone: Alone) -> None:
        for step in (1, 2):
            spent = TimeSpent(training=step / 3, paused=0.5, copying=0.125, looking=0.25, loading=2.0)
            alone.outbox.step(replace(news(step), spent=spent))
        alone.received = Moved(1.5, 3000)  # of the moment in which it is sent
        alone.works()
        spent = TimeSpent(training=0.6667, paused=0.5, copying=0.125, looking=0.25, loading=2.0)
        report = StepReport(7, 2, 20, 0.5, 2.0, 2, spent=spent, receiving_seconds=1.5, received_bytes=3000)
        assert alone.session.sent == [report]

    def test_the_order_of_events_is_kept_and_a_leave_comes_last(self, alone: Alone) -> None:
        outbox = alone.outbox
        outbox.applied(NOW, 0, 4, 11)
        outbox.ready(NOW)
        outbox.declined(NOW, 1, 5, 1)
        outbox.applied(NOW, 0, 5, 12)
        outbox.leave(NOW, "SIGTERM")
        outbox.step(news(1))
        alone.works()
        assert alone.session.sent == [
            Ready(7),
            Declined(7, 1, 5, 1),
            Applied(7, 0, 5, 12),
            StepReport(7, 1, 10, 0.5, 2.0, 1),
            Leave(7, "SIGTERM"),
        ]

    def test_the_step_report_outlives_its_session_and_nothing_else_does(self, alone: Alone) -> None:
        following = Recorder()
        alone.outbox.ready(NOW)
        alone.outbox.step(news(4))
        alone.outbox.session_over()
        alone.works()
        assert alone.session.sent == []
        alone.begins(following, NEXT)
        alone.outbox.applied(NOW, 0, 4, 11)
        alone.works()
        assert following.sent == [StepReport(8, 4, 40, 0.5, 2.0, 4)]


class TestFlush:
    def flushed(self, alone: Alone) -> bool | None:
        """Whether all is sent and there is a session; None: it waits."""
        task = alone.loop.create_task(alone.outbox.flush())
        alone.loop.work(0.1)
        return task.result() if task.done() else None

    def test_there_is_nothing_to_wait_for_where_nothing_was_put(self, alone: Alone) -> None:
        assert self.flushed(alone) is True
        alone.outbox.session_over()
        assert self.flushed(alone) is False

    @pytest.mark.parametrize(
        "put", [lambda outbox: outbox.ready(NOW), lambda outbox: outbox.step(news(1))], ids=["ready", "step"]
    )
    def test_it_waits_until_the_connection_has_taken_any_message(
        self, alone: Alone, put: Callable[[Outbox], object]
    ) -> None:
        alone.session.takes.clear()
        put(alone.outbox)
        assert self.flushed(alone) is None
        alone.works()
        assert self.flushed(alone) is None
        waiting = alone.loop.create_task(alone.outbox.flush())
        alone.session.takes.set()
        alone.works()
        assert waiting.result() is True

    def test_it_ends_with_the_session(self, alone: Alone) -> None:
        alone.session.takes.clear()
        alone.works(lambda: alone.outbox.ready(NOW))
        waiting = alone.loop.create_task(alone.outbox.flush())
        alone.loop.call_later(0.5, alone.outbox.session_over)
        alone.works()
        assert waiting.result() is False
