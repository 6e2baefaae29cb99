"""A learner's messages: putting one never waits, the newest wins, and totals are not lost."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from diloco.core.time_spent import TimeSpent
from diloco.learner.mailboxes.holdings import Membership
from diloco.learner.mailboxes.outbox import ControlOutbox, FinishedStep
from diloco.runtime.busy import Moved
from diloco.wire.errors import UnavailableError
from diloco.wire.messages import Alive, Applied, Declined, EvaluationReport, LearnerMessage, Leave, Ready, StepReport
from tests.support.hand_clock import HandClock
from tests.support.scripted_condition import NothingToDoError, ScriptedCondition

NOW = Membership("1", 7)
NEXT = Membership("1", 8)


class Recorder:
    """A session that keeps what is sent; a message may break it, and its connection may stall."""

    def __init__(self, breaks_at: type | None = None) -> None:
        self.sent: list[LearnerMessage] = []
        self.backlog = 0
        self._breaks_at = breaks_at
        self._heard = threading.Condition()

    def send(self, message: LearnerMessage) -> None:
        if self._breaks_at is not None and isinstance(message, self._breaks_at):
            raise UnavailableError("the session is over")
        with self._heard:
            self.sent.append(message)
            self._heard.notify_all()

    def wait_for(self, count: int) -> list[LearnerMessage]:
        with self._heard:
            assert self._heard.wait_for(lambda: len(self.sent) >= count, 60.0)
            return list(self.sent)


@contextmanager
def running(outbox: ControlOutbox) -> Iterator[None]:
    thread = threading.Thread(target=outbox.run)
    thread.start()
    try:
        yield
    finally:
        outbox.close()
        thread.join()


def news(step: int, blocked_seconds: float = 0.25) -> FinishedStep:
    return FinishedStep(step, 10 * step, 0.5, blocked_seconds, 2.0, step)


class Alone:
    """An outbox whose thread is run by the test: its waits end by the given events."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = HandClock()
        monkeypatch.setattr("diloco.learner.mailboxes.outbox.time", SimpleNamespace(monotonic=self.clock))
        self.outbox = ControlOutbox(alive_seconds=5.0)
        self.condition = self.outbox._condition = ScriptedCondition()
        self.session = Recorder()

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
        alone.works(
            lambda: alone.put(lambda: outbox.step(news(1))),
            None,
            lambda: outbox.session_begins(session, NOW),
            lambda: alone.put(lambda: outbox.ready(NOW)),
            lambda: alone.put(lambda: outbox.evaluated(NOW, 3, 2.5, exact=True)),
        )
        assert session.sent == [
            StepReport(7, 1, 10, 0.5, 0.25, 2.0, 1),
            Ready(7),
            EvaluationReport(7, 3, 2.5, exact=True),
        ]

    def test_blocked_time_is_told_once(self, alone: Alone) -> None:
        outbox, session = alone.outbox, alone.session
        outbox.session_begins(session, NOW)
        outbox.step(news(1))
        alone.works(lambda: alone.put(lambda: outbox.step(news(2, blocked_seconds=0.5))))
        assert [said.blocked_seconds for said in session.sent if isinstance(said, StepReport)] == [0.25, 0.5]

    def test_it_ends_when_it_is_closed(self, alone: Alone) -> None:
        assert alone.works(alone.outbox.close, lambda: pytest.fail("it goes on")) == [5.0]

    def test_it_is_silent_for_no_longer_than_it_may(self, alone: Alone) -> None:
        alone.outbox.session_begins(alone.session, NOW)
        alone.outbox.ready(NOW)
        assert alone.works(None, lambda: alone.put(lambda: alone.outbox.ready(NOW)), None) == [5.0, 5.0, 5.0, 5.0]
        assert alone.session.sent == [Ready(7), Alive(7), Ready(7), Alive(7)]

    @pytest.mark.parametrize(("backlog", "sent"), [(16, [Ready(7)]), (17, [])])
    def test_a_connection_takes_sixteen_messages_ahead(
        self, alone: Alone, backlog: int, sent: list[LearnerMessage]
    ) -> None:
        alone.outbox.session_begins(alone.session, NOW)
        alone.outbox.ready(NOW)
        alone.session.backlog = backlog
        assert alone.works() == [0.1 if backlog == 17 else 5.0]
        assert alone.session.sent == sent

    def test_the_time_in_which_a_connection_takes_nothing_counts_as_silence(self, alone: Alone) -> None:
        alone.outbox.session_begins(alone.session, NOW)
        alone.session.backlog = 17

        def wakes(seconds: float, backlog: int) -> None:
            alone.clock.now += seconds
            alone.session.backlog = backlog
            alone.outbox.post()

        waits = alone.works(None, lambda: wakes(4.5, 17), None, lambda: wakes(0.5, 0), None)
        assert waits == [5.0, 0.1, 0.1, 0.5, 0.5, 5.0]
        assert alone.session.sent == [Alive(7)]

    def test_a_session_that_breaks_while_the_next_begins_does_not_end_the_next(self, alone: Alone) -> None:
        following = Recorder()

        class Breaking(Recorder):
            def send(self, message: LearnerMessage) -> None:
                alone.outbox.session_over()
                if self.sent:
                    alone.outbox.session_begins(following, NEXT)
                self.sent.append(message)
                raise UnavailableError("broken")

        first = Breaking()
        for _ in range(2):
            alone.outbox.session_begins(first, NOW)
            alone.outbox.ready(NOW)
            alone.works()
        alone.outbox.ready(NEXT)
        alone.works()
        assert (first.sent, following.sent) == ([Ready(7), Ready(7)], [Ready(8)])

    def test_a_session_that_is_over_gets_nothing(self, alone: Alone) -> None:
        alone.outbox.session_begins(alone.session, NOW)
        alone.outbox.session_over()
        alone.outbox.step(news(1))
        alone.works()
        assert alone.session.sent == []

    def test_what_was_put_for_one_session_is_not_sent_on_the_next(self, alone: Alone) -> None:
        alone.outbox.session_begins(Recorder(), NOW)
        alone.outbox.ready(NOW)
        alone.outbox.session_begins(alone.session, NEXT)
        alone.works()
        assert alone.session.sent == []


class TestFlush:
    def test_there_is_nothing_to_wait_for_where_nothing_was_put(self, alone: Alone) -> None:
        assert not alone.outbox.flush(0.0)
        alone.outbox.session_begins(alone.session, NOW)
        assert alone.outbox.flush(0.0)

    def test_it_waits_for_any_kind_of_message(self, alone: Alone) -> None:
        alone.outbox.session_begins(alone.session, NOW)
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

        alone.outbox.session_begins(alone.session, NOW)
        alone.works(flushes)
        assert alone.session.sent == [Ready(7)]

    def test_it_waits_for_the_message_that_is_being_sent(self, alone: Alone) -> None:
        seen: list[bool] = []

        class Asking(Recorder):
            def send(self, message: LearnerMessage) -> None:
                seen.append(alone.outbox.flush(0.0))
                super().send(message)

        alone.session = Asking()
        alone.outbox.session_begins(alone.session, NOW)
        alone.outbox.ready(NOW)
        alone.works()
        assert seen == [False]

    def test_it_ends_with_the_session(self, alone: Alone) -> None:
        alone.outbox.session_begins(alone.session, NOW)
        alone.outbox.ready(NOW)
        alone.condition.events = [alone.outbox.session_over]
        assert not alone.outbox.flush(60.0)
        assert alone.condition.waits == [60.0]

    def test_it_ends_when_the_last_message_is_sent(self, alone: Alone) -> None:
        alone.outbox.session_begins(alone.session, NOW)
        alone.outbox.ready(NOW)
        alone.condition.events = [alone.works]
        assert alone.outbox.flush(60.0)


def test_unsent_steps_become_one_report_with_all_their_blocked_time() -> None:
    outbox, session = ControlOutbox(alive_seconds=3600.0), Recorder()
    for step in (1, 2, 3):
        outbox.step(news(step))
    outbox.session_begins(session, NOW)
    with running(outbox):
        (report,) = session.wait_for(1)
    assert report == StepReport(7, 3, 30, 0.5, 0.75, 2.0, 3)


def test_a_report_has_the_received_bytes_of_the_moment_it_is_sent() -> None:
    outbox, session = ControlOutbox(3600.0, lambda: Moved(1.5, 3000)), Recorder()
    outbox.step(news(1))
    outbox.session_begins(session, NOW)
    with running(outbox):
        (report,) = session.wait_for(1)
    assert isinstance(report, StepReport)
    assert (report.receiving_seconds, report.received_bytes) == (1.5, 3000)


def test_where_the_time_went_is_told_as_it_stands_at_the_newest_step() -> None:
    outbox, session = ControlOutbox(alive_seconds=3600.0), Recorder()
    for step in (1, 2):
        spent = TimeSpent(training=step / 3, paused=0.5, copying=0.125, looking=0.25, loading=2.0)
        outbox.step(replace(news(step), spent=spent))
    outbox.session_begins(session, NOW)
    with running(outbox):
        (report,) = session.wait_for(1)
    assert isinstance(report, StepReport)
    assert (report.training_seconds, report.skipped_seconds, report.paused_seconds) == (0.6667, 0.0, 0.5)
    assert (report.copying_seconds, report.looking_seconds) == (0.125, 0.25)
    assert (report.evaluating_seconds, report.checkpointing_seconds, report.loading_seconds) == (0.0, 0.0, 2.0)


def test_the_order_of_events_is_kept_and_a_leave_comes_last() -> None:
    outbox, session = ControlOutbox(alive_seconds=3600.0), Recorder()
    outbox.session_begins(session, NOW)
    outbox.applied(NOW, 0, 4, 11)
    outbox.ready(NOW)
    outbox.declined(NOW, 1, 5, 1)
    outbox.applied(NOW, 0, 5, 12)
    outbox.leave(NOW, "SIGTERM")
    outbox.step(news(1))
    with running(outbox):
        assert outbox.flush(60.0)
    assert session.sent == [
        Ready(7),
        Declined(7, 1, 5, 1),
        Applied(7, 0, 5, 12),
        StepReport(7, 1, 10, 0.5, 0.25, 2.0, 1),
        Leave(7, "SIGTERM"),
    ]


def test_a_message_of_another_admission_is_not_sent() -> None:
    outbox, session = ControlOutbox(alive_seconds=3600.0), Recorder()
    outbox.session_begins(session, NEXT)
    outbox.applied(NOW, 0, 4, 11)
    outbox.ready(NEXT)
    with running(outbox):
        assert outbox.flush(60.0)
    assert session.sent == [Ready(8)]


def test_the_step_report_outlives_its_session_and_nothing_else_does() -> None:
    outbox, session = ControlOutbox(alive_seconds=3600.0), Recorder()
    outbox.session_begins(Recorder(), NOW)
    outbox.ready(NOW)
    outbox.step(news(4))
    outbox.session_over()
    assert not outbox.flush(0.0)
    outbox.session_begins(session, NEXT)
    with running(outbox):
        assert session.wait_for(1) == [StepReport(8, 4, 40, 0.5, 0.25, 2.0, 4)]


def test_it_says_that_it_lives_when_there_is_nothing_else_to_say() -> None:
    outbox, session = ControlOutbox(alive_seconds=0.01), Recorder()
    outbox.session_begins(session, NOW)
    with running(outbox):
        assert session.wait_for(3)[:3] == [Alive(7)] * 3


def test_a_broken_session_is_not_used_again() -> None:
    outbox, session = ControlOutbox(alive_seconds=3600.0), Recorder(breaks_at=Ready)
    outbox.session_begins(session, NOW)
    outbox.ready(NOW)
    with running(outbox):
        assert not outbox.flush(60.0)
        outbox.applied(NOW, 0, 1, 1)
        assert not outbox.flush(60.0)
    assert session.sent == []


def test_reports_wait_and_coalesce_while_the_connection_takes_nothing() -> None:
    outbox, session = ControlOutbox(alive_seconds=3600.0), Recorder()
    session.backlog = 1000
    outbox.session_begins(session, NOW)
    with running(outbox):
        for step in (1, 2, 3):
            outbox.step(news(step))
            outbox.post()
        assert session.sent == []
        session.backlog = 0
        assert outbox.flush(60.0)
    assert session.sent == [StepReport(7, 3, 30, 0.5, 0.75, 2.0, 3)]
