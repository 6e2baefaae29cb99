"""What a syncer's answer comes to; none of these waits for time to pass."""

import asyncio
import json
import math
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from diloco_operator.decide.observed import SyncerAway, SyncerStatusView
from diloco_operator.jobs.jobs import JobKey
from diloco_operator.jobs.observe import syncer
from diloco_operator.jobs.observe.syncer import (
    LONGEST_ANSWER_BYTES,
    Planned,
    SyncerClient,
    new_session,
    planned_learners,
    status_url,
)
from tests.support.virtual_time import in_virtual_time

JOB = JobKey("ns", "job")
ADDRESS = "10.96.0.7"
PLANNED = {"eu/slow": 2}
HEAD = {"job": "job", "epoch": 1, "phase": "Training"}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, a server that answers does so in time."""
    monkeypatch.setattr(syncer, "TIMEOUT_SECONDS", 3600.0)


@asynccontextmanager
async def asker_of(handler: Handler | None) -> AsyncIterator[SyncerClient]:
    """A client of a syncer that answers like this; None: no server listens."""
    app = web.Application()
    if handler is not None:
        app.router.add_get("/status", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    if handler is None:
        await runner.cleanup()
    async with new_session() as session:
        try:
            yield SyncerClient(session, lambda _: f"http://127.0.0.1:{port}/status")
        finally:
            await runner.cleanup()


def asked(handler: Handler | None, planned: Planned = PLANNED) -> SyncerStatusView | SyncerAway:
    """The result of one request."""

    async def run() -> SyncerStatusView | SyncerAway:
        async with asker_of(handler) as asker:
            return await asker.ask(JOB, ADDRESS, planned)

    return asyncio.run(run())


def answering(body: str, status: int = 200) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text=body, status=status)

    return handler


@pytest.mark.parametrize(
    ("address", "url"), [("10.96.0.7", "http://10.96.0.7:8080/status"), ("fd00::7", "http://[fd00::7]:8080/status")]
)
def test_it_asks_by_the_services_address_so_that_no_name_is_looked_up(address: str, url: str) -> None:
    assert status_url(address) == url


def test_what_it_knows_is_read_and_what_it_does_not_know_is_let_pass() -> None:
    view = asked(answering(json.dumps({"job": "job", "epoch": 3, "phase": "Training", "invented_later": [1]})))
    assert isinstance(view, SyncerStatusView)
    assert view.epoch == 3


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (None, "cannot connect"),
        (answering("busy", status=503), "answered with HTTP 503"),
        (answering("{"), "its /status is invalid"),
        (answering(json.dumps({"job": "job", "epoch": "x", "phase": "Training"})), "epoch"),
        (answering(json.dumps({"job": "other", "epoch": 1, "phase": "Training"})), "another job, 'other'"),
        (answering(" " * (1 << 21)), "larger than 1028 KiB"),
        (answering("[]"), "invalid: the answer: "),
        (answering(json.dumps({**HEAD, "unknown": [[]] * 1000})), "invalid: it has too many items"),
    ],
)
def test_whatever_else_comes_is_a_reason_in_words_that_stay_the_same(handler: Handler | None, reason: str) -> None:
    first, second = asked(handler), asked(handler)
    assert isinstance(first, SyncerAway)
    assert reason in first.reason
    # Ports differ from one request to the next.
    assert first == second


class Silent:
    """A session in which no answer ever comes."""

    @asynccontextmanager
    async def get(self, *_: object, **__: object) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield


def test_a_syncer_that_does_not_answer_in_time_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncer, "TIMEOUT_SECONDS", 3.0)
    session: Any = Silent()
    assert in_virtual_time(SyncerClient(session).ask(JOB, ADDRESS, PLANNED)) == SyncerAway("no answer within 3 s")


def test_each_question_has_a_connection_of_its_own() -> None:
    ends: list[object] = []

    async def handler(request: web.Request) -> web.Response:
        assert request.transport is not None
        ends.append(request.transport.get_extra_info("peername"))
        return web.Response(text="not here", status=404)

    async def run() -> None:
        async with asker_of(handler) as asker:
            asked_twice = [await asker.ask(JOB, ADDRESS, PLANNED) for _ in range(2)]
            assert asked_twice == [SyncerAway("answered with HTTP 404")] * 2

    asyncio.run(run())
    assert len(set(ends)) == 2


def test_no_more_is_read_however_many_learners_are_planned() -> None:
    answer = asked(answering(" " * (LONGEST_ANSWER_BYTES + 1)), {"eu/slow": 10_000_000})
    assert answer == SyncerAway("its /status is larger than 8192 KiB")


def test_answers_are_parsed_beside_the_loop_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    parse, parsing = syncer._understood, threading.Lock()

    def parsed(*given: Any) -> SyncerStatusView | SyncerAway:
        assert threading.current_thread() is not threading.main_thread()
        assert parsing.acquire(blocking=False), "another answer is parsed too"
        try:
            return parse(*given)
        finally:
            parsing.release()

    monkeypatch.setattr(syncer, "_understood", parsed)
    learners = [report(f"eu/slow/{index}") for index in range(1000)]

    async def run() -> list[SyncerStatusView | SyncerAway]:
        async with asker_of(answering(json.dumps({**HEAD, "learners": learners}))) as asker:
            return await asyncio.gather(*(asker.ask(JOB, ADDRESS, PLANNED) for _ in range(8)))

    assert all(isinstance(answer, SyncerStatusView) for answer in asyncio.run(run()))


def report(learner: str, **fields: Any) -> dict[str, Any]:
    return {"id": learner, "state": "Training", **fields}


def test_planned_learners_are_kept_once_and_few_others() -> None:
    others = ["eu/slow/01", "eu/slow/\u0661", "eu/slow/x", *(f"eu/slow/{index}" for index in range(2, 1000))]
    learners = [report(one) for one in others] + [report("eu/slow/0"), report("eu/slow/1"), report("eu/slow/0")]
    view = asked(answering(json.dumps({**HEAD, "learners": learners})))
    assert isinstance(view, SyncerStatusView)
    assert [one.id for one in view.learners] == ["eu/slow/0", "eu/slow/1", *others[:64]]


def test_texts_and_lists_are_cut_and_the_newest_evaluation_is_kept() -> None:
    long, many = "x" * 10_000, 1000
    learners = [report("eu/slow/0", diverged_reason=long), report(long)]
    body = {
        **HEAD,
        "phase_reason": long,
        "learners": learners,
        "evaluations": [{"loss": float(number)} for number in range(many)],
        "time_seconds": {f"{number}": 1.0 for number in range(many)},
        "links": {"kind": "Fits", "reason": long, "remedies": [long] * 50},
    }
    view = asked(answering(json.dumps(body)))
    assert isinstance(view, SyncerStatusView)
    assert view.evaluations[-1].loss == many - 1
    assert [len(one.diverged_reason) for one in view.learners] == [256]
    assert len(view.model_dump_json()) < 50_000


def test_as_many_links_and_regions_are_kept_as_there_are_pools() -> None:
    pools = {f"r{number}/p": 1 for number in range(100)}
    links = {"kind": "Fits", "used": [{"name": pool} for pool in pools]}
    moved = [{"region": pool[:-2], "up": {"bulk": 1}, "down": {"control": 2}} for pool in pools]
    view = asked(answering(json.dumps({**HEAD, "links": links, "bytes_by_region": moved})), pools)
    assert isinstance(view, SyncerStatusView)
    assert view.links is not None
    assert (len(view.links.used), len(view.bytes_by_region)) == (100, 100)


def test_a_number_that_is_not_finite_is_no_answer() -> None:
    for number in (math.inf, math.nan):
        answer = asked(answering(json.dumps({**HEAD, "merged_tokens": number})))
        assert isinstance(answer, SyncerAway)
        assert answer.reason.startswith("its /status is invalid: merged_tokens: ")


def test_what_is_planned_is_read_from_a_job_that_may_be_invalid() -> None:
    pools = [{"name": "slow", "learners": 2}, {"name": "fast"}, {"name": "odd", "learners": "x"}]
    spec = {"regions": [{"name": "eu", "pools": pools}, {"name": "us"}, None]}
    assert planned_learners({"spec": spec}) == {"eu/slow": 2, "eu/fast": 1, "eu/odd": 0}
    assert planned_learners({}) == {}
