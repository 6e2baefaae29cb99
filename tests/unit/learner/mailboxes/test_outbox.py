"""What a learner says: never waits, newest wins, sums what must not be lost."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from diloco.core.spent import TimeSpent
from diloco.learner.mailboxes.holdings import Membership
from diloco.learner.mailboxes.outbox import ControlOutbox, StepNews
from diloco.runtime.busy import Moved
from diloco.wire.errors import UnavailableError
from diloco.wire.messages import Alive, Applied, Declined, LearnerMessage, Leave, Ready, StepReport

NOW = Membership("1", 7)
NEXT = Membership("1", 8)


class Recorder:
    """A session that keeps what is sent; a message may be what breaks it, and its connection may stand still."""

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


def news(step: int, blocked_seconds: float = 0.25) -> StepNews:
    return StepNews(step, 10 * step, 0.5, blocked_seconds, 2.0, step)


def test_steps_that_could_not_be_sent_are_one_report_of_the_newest_with_all_the_blocked_time() -> None:
    outbox, session = ControlOutbox(alive_seconds=3600.0), Recorder()
    for step in (1, 2, 3):
        outbox.step(news(step))
    outbox.session_begins(session, NOW)
    with running(outbox):
        (report,) = session.wait_for(1)
    assert report == StepReport(7, 3, 30, 0.5, 0.75, 2.0, 3)


def test_what_pulls_have_brought_is_told_as_it_stands_when_the_report_goes_out() -> None:
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
