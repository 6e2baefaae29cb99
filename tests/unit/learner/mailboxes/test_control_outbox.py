"""A learner's messages: putting one never waits, the newest wins, and totals are not lost."""

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from diloco.core.account.time_spent import TimeSpent
from diloco.learner.mailboxes.control_outbox import ControlOutbox
from diloco.learner.mailboxes.holdings import Membership
from diloco.runtime.process.busy import Moved
from diloco.wire.errors import UnavailableError
from diloco.wire.messages import Alive, Applied, Declined, EvaluationReport, LearnerMessage, Leave, Ready, StepReport
from tests.support.hand_clock import clock_of
from tests.support.scripted_condition import NothingToDoError, ScriptedCondition

NOW = Membership("1", 7)
NEXT = Membership("1", 8)


class Recorder:
    """A session that keeps what is sent."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.sent: list[LearnerMessage] = []
        self.backlog = 0
        self._meanwhile = meanwhile

    def send(self, message: LearnerMessage) -> None:
        self.sent.append(message)
        self._meanwhile()


def breaks() -> None:
    raise UnavailableError("broken")


def news(step: int) -> StepReport:
    return StepReport(0, step, 10 * step, 0.5, 2.0, step)


class Alone:
    """An outbox whose thread is run by the test: its waits end by the given events. A session has begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = clock_of("mailboxes.control_outbox", monkeypatch)
        self.received = Moved()
        self.outbox = ControlOutbox(5.0, lambda: self.received)
        self.condition = self.outbox._condition = ScriptedCondition()
        self.session = Recorder()
        self.outbox.session_begins(self.session, NOW)

    def works(self, *events: Callable[[], object] | None) -> list[float | None]:
        """Run the thread until there are no more events. Returns the longest time that each wait allowed."""
        self.condition.events, self.condition.waits = list(events), []
        with contextlib.suppress(NothingToDoError):
            self.outbox.run()
        return self.condition.waits

    def put(self, *calls: Callable[[], object]) -> None:
        for call in calls:
            call()
        self.outbox.post()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Alone:
    return Alone(monkeypatch)


class TestItsThread:
    def test_it_sends_what_is_put_once_there_is_a_session(self, alone: Alone) -> None:
        outbox, session = alone.outbox, alone.session
        outbox.session_over()
        alone.works(
            lambda: alone.put(lambda: outbox.step(news(1))),
            None,
            lambda: outbox.session_begins(session, NOW),
            lambda: alone.put(lambda: outbox.ready(NOW)),
            lambda: alone.put(lambda: outbox.evaluated(NOW, 3, 2.5, exact=True)),
        )
        assert session.sent == [
            StepReport(7, 1, 10, 0.5, 2.0, 1),
            Ready(7),
            EvaluationReport(7, 3, 2.5, exact=True),
        ]

    def test_it_ends_when_it_is_closed(self, alone: Alone) -> None:
        assert alone.works(alone.outbox.close, lambda: pytest.fail("it goes on")) == [5.0]

    def test_it_is_silent_for_no_longer_than_it_may(self, alone: Alone) -> None:
        alone.outbox.ready(NOW)
        assert alone.works(None, lambda: alone.put(lambda: alone.outbox.ready(NOW)), None) == [5.0, 5.0, 5.0, 5.0]
        assert alone.session.sent == [Ready(7), Alive(7), Ready(7), Alive(7)]

    @pytest.mark.parametrize(("backlog", "sent"), [(16, [Ready(7)]), (17, [])])
    def test_a_connection_takes_sixteen_messages_ahead(
        self, alone: Alone, backlog: int, sent: list[LearnerMessage]
    ) -> None:
        alone.outbox.ready(NOW)
        alone.session.backlog = backlog
        assert alone.works() == [0.1 if backlog == 17 else 5.0]
        assert alone.session.sent == sent

    def test_the_time_in_which_a_connection_takes_nothing_counts_as_silence(self, alone: Alone) -> None:
        alone.session.backlog = 17

        def wakes(seconds: float, backlog: int) -> None:
            alone.clock.now += seconds
            alone.session.backlog = backlog
            alone.outbox.post()

        waits = alone.works(None, lambda: wakes(4.5, 17), None, lambda: wakes(0.5, 0), None)
        assert waits == [5.0, 0.1, 0.1, 0.5, 0.5, 5.0]
        assert alone.session.sent == [Alive(7)]

    def test_a_broken_session_is_not_used_again(self, alone: Alone) -> None:
        broken = Recorder(breaks)
        alone.outbox.session_begins(broken, NOW)
        alone.outbox.ready(NOW)
        alone.works()
        alone.outbox.ready(NOW)
        assert not alone.outbox.flush(60.0)
        alone.works()
        assert broken.sent == [Ready(7)]

    def test_a_session_that_breaks_while_the_next_begins_does_not_end_the_next(self, alone: Alone) -> None:
        def begins_the_next() -> None:
            alone.outbox.session_over()
            alone.outbox.session_begins(alone.session, NEXT)
            breaks()

        alone.outbox.session_begins(Recorder(begins_the_next), NOW)
        alone.outbox.ready(NOW)
        alone.works()
        alone.outbox.ready(NEXT)
        alone.works()
        assert alone.session.sent == [Ready(8)]


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
        alone.outbox.session_begins(following, NEXT)
        alone.outbox.applied(NOW, 0, 4, 11)
        alone.works()
        assert following.sent == [StepReport(8, 4, 40, 0.5, 2.0, 4)]


class TestFlush:
    def test_there_is_nothing_to_wait_for_where_nothing_was_put(self, alone: Alone) -> None:
        assert alone.outbox.flush(0.0)
        alone.outbox.session_over()
        assert not alone.outbox.flush(0.0)

    def test_it_waits_for_any_kind_of_message(self, alone: Alone) -> None:
        alone.outbox.ready(NOW)
        assert not alone.outbox.flush(0.0)
        alone.works()
        assert alone.outbox.flush(0.0)
        alone.outbox.step(news(1))
        assert not alone.outbox.flush(0.0)

    def test_it_has_what_was_put_sent(self, alone: Alone) -> None:
        def flushes() -> None:
            alone.outbox.ready(NOW)
            assert not alone.outbox.flush(0.0)

        alone.works(flushes)
        assert alone.session.sent == [Ready(7)]

    def test_it_waits_for_the_message_that_is_being_sent(self, alone: Alone) -> None:
        seen: list[bool] = []
        alone.outbox.session_begins(Recorder(lambda: seen.append(alone.outbox.flush(0.0))), NOW)
        alone.outbox.ready(NOW)
        alone.works()
        assert seen == [False]

    def test_it_ends_with_the_session(self, alone: Alone) -> None:
        alone.outbox.ready(NOW)
        alone.condition.events = [alone.outbox.session_over]
        assert not alone.outbox.flush(60.0)
        assert alone.condition.waits == [60.0]

    def test_it_ends_when_the_last_message_is_sent(self, alone: Alone) -> None:
        alone.outbox.ready(NOW)
        alone.condition.events = [alone.works]
        assert alone.outbox.flush(60.0)
