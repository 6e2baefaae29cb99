"""How long a link's answers take, as far as it says how many connections it is worth; and the thread of transfers."""

import asyncio
import concurrent.futures
import math

import pytest

from diloco.wire.client.lanes import Lanes, LoopThread


def test_the_least_of_the_latest_answers_counts() -> None:
    lanes = Lanes(lambda _: pytest.fail("nothing is opened"))
    assert lanes.answer_seconds == math.inf
    lanes.answered(0.01)
    lanes.answered(0.15)
    assert lanes.answer_seconds == 0.01
    for _ in range(32):  # the syncer is elsewhere now
        lanes.answered(0.15)
    assert lanes.answer_seconds == 0.15


def test_a_closed_thread_cancels_its_work_and_takes_no_more() -> None:
    thread, closed = LoopThread(), []

    async def last() -> None:
        closed.append(True)

    waiting = thread.start(lambda: asyncio.sleep(3600))
    thread.close(last)
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result(30)
    assert closed == [True]
    with pytest.raises(ValueError, match="the thread is closed"):
        thread.start(lambda: asyncio.sleep(0))


def test_a_thread_that_never_began_closes_without_a_word() -> None:
    LoopThread().close(lambda: pytest.fail("there is nothing to close"))
