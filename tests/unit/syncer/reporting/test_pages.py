"""The pages of a syncer, and what they say while its event loop is stuck or gone."""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from diloco.runtime.http import Response
from diloco.runtime.process.heartbeat import Heartbeat
from diloco.spec.status.syncer import SyncerStatus
from diloco.syncer.reporting import pages as syncer_pages
from diloco.syncer.reporting.metrics import SyncerMetrics
from diloco.syncer.reporting.pages import LoopBusyError, on_loop, page_for_people, routes
from tests.support.hand_clock import HandClock
from tests.support.status_of_a_job import STATUS

HERE = Path(__file__).parent


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_what_is_read_on_the_loop_comes_back_to_the_thread_that_asked(loop: asyncio.AbstractEventLoop) -> None:
    assert on_loop(loop, threading.current_thread) is not threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        on_loop(loop, lambda: 1 // 0)


def test_a_loop_that_is_gone_makes_pages_unavailable_and_no_fault() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(LoopBusyError):
        on_loop(loop, lambda: 1)

    def busy() -> SyncerStatus:
        raise LoopBusyError("the event loop does not answer")

    pages = routes(SyncerMetrics(), Heartbeat(), busy, lambda: False, HERE)
    assert pages["/status"]() == Response.text("the event loop does not answer\n", 503)
    assert pages["/metrics"]().status == 503
    assert pages["/readyz"]().status == 503
    assert page_for_people(busy, lambda _: Response.text("never"))["/page"]().status == 503


def test_the_page_for_people_is_drawn_from_the_status_if_anyone_draws_it() -> None:
    (drawn,) = page_for_people(lambda: STATUS, lambda status: Response.text(status.job)).values()
    assert drawn() == Response.text("small")
    assert page_for_people(lambda: STATUS, None) == {}


def test_what_a_stuck_loop_was_asked_is_not_done_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncer_pages, "_ANSWER_SECONDS", 0.0)
    loop, read = asyncio.new_event_loop(), list[int]()
    with pytest.raises(LoopBusyError, match="the event loop does not answer"):
        on_loop(loop, lambda: read.append(1))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert read == []


@pytest.mark.parametrize(("lag_seconds", "code"), [(0.0, 200), (10.0, 200), (10.25, 503), (20.0, 503)])
def test_health_is_the_event_loops_lag(lag_seconds: float, code: int) -> None:
    clock = HandClock()
    pages = routes(SyncerMetrics(), Heartbeat(clock), lambda: STATUS, lambda: True, HERE)
    clock.now += 0.25 + lag_seconds  # a beat is due every quarter of a second
    assert pages["/healthz"]() == Response.text(f"event loop lag {lag_seconds:.3f} s\n", code)
    assert f"diloco_event_loop_lag_seconds {lag_seconds}" in pages["/metrics"]().body.decode().splitlines()


def test_the_status_is_json_on_a_line() -> None:
    pages = routes(SyncerMetrics(), Heartbeat(HandClock()), lambda: STATUS, lambda: True, HERE)
    answer = pages["/status"]()
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert answer.body == STATUS.model_dump_json().encode() + b"\n"
    assert pages["/readyz"]() == Response.text("serving\n")


def test_the_page_says_how_full_the_volume_is_and_is_there_without_one(tmp_path: Path) -> None:
    def figures(directory: Path) -> dict[str, float]:
        answer = routes(SyncerMetrics(), Heartbeat(HandClock()), lambda: STATUS, lambda: True, directory)["/metrics"]()
        assert answer.status == 200
        lines = (line.split() for line in answer.body.decode().splitlines() if line.startswith("diloco_disk_"))
        return {name: float(value) for name, value in lines}

    found = figures(tmp_path)
    assert 0 < found["diloco_disk_free_bytes"] <= found["diloco_disk_size_bytes"] == shutil.disk_usage(tmp_path).total
    assert figures(tmp_path / "gone") == {"diloco_disk_free_bytes": 0.0, "diloco_disk_size_bytes": 0.0}
