"""The loop beside the training thread: it is there when it is needed, ends with all its work, and says if it fails."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures.thread import _threads_queues  # those that the interpreter waits for, daemons or not

import pytest
import torch

from diloco.core.merge.codecs import codec_named
from diloco.learner.exchange.exchange import Exchange, ExchangeOptions
from diloco.learner.exchange.holdings import Holdings
from diloco.learner.exchange.link import Position, Shared
from diloco.learner.exchange.orders import Membership, Orders, Wakeup
from diloco.learner.exchange.outbox import Outbox
from diloco.learner.exchange.pulls import ReceiveOptions
from diloco.learner.exchange.pushes import PushEncoding
from diloco.learner.exchange.requests import Requests
from diloco.learner.exchange.transfers import TransferCounts
from diloco.wire.client.client import ClientOptions
from diloco.wire.messages import Join

NOW = Membership("1", 7)
NOBODY = "127.0.0.1:1"


class Bench:
    """An exchange with a syncer that nobody reaches."""

    def __init__(self) -> None:
        self.wakeup = Wakeup()
        self.orders = Orders(self.wakeup)
        self.outbox = Outbox(5.0)
        shared = Shared(self.orders, Requests(self.wakeup, 1, 1), Holdings(self.wakeup, 1), self.outbox, None)
        codec = codec_named("None")
        options = ExchangeOptions(
            Join("job", "r/p/0", "abc", "digest"),
            ClientOptions(NOBODY),
            PushEncoding(codec, None),
            ReceiveOptions((1,), lambda _: torch.zeros(1), None),
            lambda: Position(0, 0),
            lambda: 0.0,
            lambda: 0.0,
        )
        self.exchange = Exchange(options, shared, TransferCounts())


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.exchange.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name == "exchange"]


def test_what_was_put_before_it_starts_is_delivered(bench: Bench) -> None:
    delivered = threading.Event()
    bench.outbox.push = lambda _: delivered.set()
    bench.outbox.answer(None)  # type: ignore[arg-type]  # nobody looks at it
    bench.outbox.post()
    bench.exchange.start()
    assert delivered.wait(30)


def test_what_is_posted_is_delivered_on_its_thread(bench: Bench) -> None:
    names: list[str] = []
    delivered = threading.Event()

    def push(_: object) -> None:
        names.append(threading.current_thread().name)
        delivered.set()

    bench.outbox.push = push
    bench.exchange.start()
    bench.outbox.answer(None)  # type: ignore[arg-type]  # nobody looks at it
    bench.outbox.post()
    assert delivered.wait(30)
    assert names == ["exchange"]


def test_without_a_session_nothing_is_handed_in_and_nobody_is_told(bench: Bench) -> None:
    bench.exchange.start()
    assert bench.exchange.hand_in(0.0)
    assert bench.exchange.pending() == ()
    assert not bench.exchange.leave(NOW, "SIGTERM", 1.0)


def test_who_leaves_waits_until_the_syncer_has_ended_the_session(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    async def session() -> None:
        await asyncio.sleep(0.5)
        ended.set()

    async def sent() -> bool:
        return True

    monkeypatch.setattr(bench.exchange.link, "run", session)
    monkeypatch.setattr(bench.outbox, "flush", sent)
    bench.exchange.start()
    assert bench.exchange.leave(NOW, "SIGTERM", 60.0)
    assert ended.is_set(), "what is broken off may overtake the message"


@pytest.mark.parametrize("started", [False, True])
def test_one_that_is_closed_or_never_began_answers_at_once(bench: Bench, *, started: bool) -> None:
    if started:
        bench.exchange.start()
        bench.exchange.close()
    assert not bench.exchange.hand_in(60.0)
    assert not bench.exchange.leave(NOW, "SIGTERM", 60.0)
    bench.outbox.ready(NOW)
    bench.outbox.post()


def test_a_failure_that_nobody_expects_ends_the_learner(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(bench.exchange.link, "_join", breaks)
    since = bench.wakeup.notices
    bench.exchange.start()
    bench.wakeup.wait(since, 30)
    with pytest.raises(ZeroDivisionError):
        bench.orders.ending()


def test_the_interpreter_does_not_wait_for_a_slow_name_server(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered = threading.Event(), threading.Event()
    waits: list[threading.Thread] = []

    def asks() -> None:
        waits.append(threading.current_thread())
        asked.set()
        answered.wait(60)

    monkeypatch.setattr(bench.exchange._client, "why_unreachable", asks)
    bench.exchange.start()
    assert asked.wait(30)
    bench.exchange.close()
    assert waits[0].daemon
    assert waits[0] not in _threads_queues
    answered.set()
    waits[0].join(30)
    assert not waits[0].is_alive()


def test_one_that_stays_finds_that_nobody_answers(bench: Bench) -> None:
    assert not bench.exchange.goes_on()
