"""The link while there is no session: how long it waits, what it says, and when it stops. Sessions are scripted."""

import asyncio
import logging
from itertools import pairwise

import pytest

from diloco.learner.exchange.orders import EndKind, Membership
from diloco.wire.errors import RevokedError, UnavailableError
from diloco.wire.messages import Join, SyncerMessage
from tests.support.hand_clock import clock_of
from tests.support.scripted_link import OVER, Bench, Script, welcome


def test_the_delay_before_it_joins_again_doubles_until_it_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = UnavailableError("nobody there")
    bench = Bench(broken, broken, broken, Script(welcome()), broken, Script(OVER), uniform=1.0)
    opened: list[float] = []
    opens = bench.open_session

    async def notes(join: Join) -> Script:
        opened.append(bench.loop.time())
        return await opens(join)

    monkeypatch.setattr(bench, "open_session", notes)
    bench.run()
    assert [after - before for before, after in pairwise(opened)] == [0.25, 0.5, 1.0, 0.25, 0.5]


def test_it_tells_once_that_the_syncer_is_lost_and_how_long_it_was(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "diloco.learner.exchange.link")
    clock, broken = clock_of("exchange.link", monkeypatch), UnavailableError("nobody there")
    sessions = [Script(welcome(7, load=(1,))), Script(welcome(8)), Script(welcome(9), OVER)]
    bench = Bench(broken, broken, *sessions)
    opens = bench.open_session

    async def opens_later(join: Join) -> Script:
        clock.now += 1.5
        return await opens(join)

    monkeypatch.setattr(bench, "open_session", opens_later)
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


def test_a_link_that_is_cancelled_ends_its_session() -> None:
    class Lasting(Script):
        async def receive(self) -> SyncerMessage | None:
            return await super().receive() or await asyncio.get_running_loop().create_future()

    session = Lasting(welcome())
    bench = Bench(session)
    over = bench.listen("pulls.session_over")
    task = bench.loop.create_task(bench.link.run())
    bench.loop.work(1.0)
    assert (session.closed, bench.link.current()) == (0, Membership("1", 1))
    task.cancel()
    bench.loop.work(1.0)
    assert (session.closed, bench.link.current(), len(over)) == (1, None, 1)


def test_a_learner_that_is_leaving_does_not_rejoin_when_its_session_ends() -> None:
    class LastSession(Script):
        async def receive(self) -> SyncerMessage | None:
            said = await super().receive()
            if said is None:
                bench.link.stop_rejoining()
            return said

    bench = Bench(LastSession(welcome()))
    bench.loop.run_until_complete(bench.link.run())
    assert len(bench.joins) == 1
    assert bench.shared.orders.ending() is None


def test_a_link_of_one_that_leaves_opens_no_session() -> None:
    bench = Bench()
    bench.link.stop_rejoining()
    bench.loop.run_until_complete(bench.link.run())
    assert bench.joins == []


def test_what_stands_in_the_way_is_said_once_and_again_when_it_changes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = clock_of("exchange.link", monkeypatch)
    away = [UnavailableError("gRPC's own words") for _ in range(5)]
    bench = Bench(*away, Script(welcome(), OVER))
    found = iter(["nothing listens there", "nothing listens there", "shows another job's certificate"])

    def look() -> str:
        clock.now += 20.0
        return next(found, "shows another job's certificate")

    bench.found = look
    bench.run()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot reach the syncer yet (nothing listens there); retrying",
        "cannot reach the syncer yet (shows another job's certificate); retrying",
    ]


def test_a_revoked_certificate_is_waited_out_and_needs_no_explanation(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Script(RevokedError("the certificate of pool r/p has been revoked")), Script(welcome(), OVER))
    bench.found = lambda: pytest.fail("a connection came about")
    assert bench.run()[0] is EndKind.FINISHED
    assert [record.getMessage() for record in caplog.records] == [
        "cannot reach the syncer yet (the certificate of pool r/p has been revoked); retrying"
    ]
