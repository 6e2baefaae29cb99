"""The link while there is no session: how long it waits, what it says, and when it stops. Sessions are scripted."""

import logging
from collections.abc import Iterator

import pytest

from diloco.learner.mailboxes.orders import EndKind
from diloco.wire.errors import RevokedError, UnavailableError
from diloco.wire.messages import Join, SyncerMessage
from tests.support.hand_clock import clock_of
from tests.support.scripted_link import OVER, Bench, Script, welcome


def test_the_delay_before_it_joins_again_doubles_until_it_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = UnavailableError("nobody there")
    bench = Bench(broken, broken, broken, Script(welcome()), broken, Script(OVER), uniform=1.0)
    delays: list[float] = []
    monkeypatch.setattr(bench.link._closed, "wait", delays.append)
    bench.run()
    assert delays == [0.25, 0.5, 1.0, 0.25, 0.5]


def test_it_tells_once_that_the_syncer_is_lost_and_how_long_it_was(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "diloco.learner.link.syncer_link")
    clock, broken = clock_of("link.syncer_link", monkeypatch), UnavailableError("nobody there")
    sessions = [Script(welcome(7, load=(1,))), Script(welcome(8)), Script(welcome(9), OVER)]
    bench = Bench(broken, broken, *sessions)
    opens = bench._open

    def opens_later(join: Join) -> Script:
        clock.now += 1.5
        return opens(join)

    bench.link._open_session = opens_later
    bench.run()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot reach the syncer yet (nobody there); retrying",
        "still no syncer: nobody there",
        "joined after 3.0 s as incarnation 7 of epoch 1; 1 of 2 fragments to load",
        "lost the syncer (the syncer ended the session); retrying",
        "rejoined after 1.5 s as incarnation 8 of epoch 1; 0 of 2 fragments to load",
        "lost the syncer (the syncer ended the session); retrying",
        "rejoined after 1.5 s as incarnation 9 of epoch 1; 0 of 2 fragments to load",
    ]


def test_closing_ends_the_session_that_lasts_and_none_that_is_over() -> None:
    seen: list[int] = []

    class Closed(Script):
        def __iter__(self) -> Iterator[SyncerMessage]:
            yield welcome()
            bench.link.close()
            seen.append(self.closed)

    first, second = Script(welcome()), Closed()
    bench = Bench(first, second)
    bench.link.run()
    bench.link.close()
    assert seen == [1]
    assert (first.closed, second.closed) == (1, 2)


def test_a_learner_that_is_leaving_does_not_rejoin_when_its_session_ends() -> None:
    class LastSession(Script):
        def __iter__(self) -> Iterator[SyncerMessage]:
            yield from super().__iter__()
            bench.link.stop_rejoining()

    bench = Bench(LastSession(welcome()))
    bench.link.run()
    assert len(bench.joins) == 1
    assert bench.boxes.orders.ending() is None


def test_a_closed_link_opens_no_session() -> None:
    bench = Bench()
    bench.link.close()
    bench.link.run()
    assert bench.joins == []


def test_what_stands_in_the_way_is_said_once_and_again_when_it_changes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = clock_of("link.syncer_link", monkeypatch)
    away = [UnavailableError("gRPC's own words") for _ in range(5)]
    bench = Bench(*away, Script(welcome(), OVER))
    found = iter(["nothing listens there", "nothing listens there", "shows another job's certificate"])

    def look() -> str:
        clock.now += 20.0
        return next(found, "shows another job's certificate")

    bench.link.why_unreachable = look
    bench.run()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot reach the syncer yet (nothing listens there); retrying",
        "cannot reach the syncer yet (shows another job's certificate); retrying",
    ]


def test_a_revoked_certificate_is_waited_out_and_needs_no_explanation(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Script(RevokedError("the certificate of pool r/p has been revoked")), Script(welcome(), OVER))
    bench.link.why_unreachable = lambda: pytest.fail("a connection came about")
    assert bench.run()[0] is EndKind.FINISHED
    assert [record.getMessage() for record in caplog.records] == [
        "cannot reach the syncer yet (the certificate of pool r/p has been revoked); retrying"
    ]
