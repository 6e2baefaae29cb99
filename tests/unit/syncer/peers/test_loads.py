"""Pulls of learners that load wait for their turn, in virtual time."""

import asyncio

import pytest

from diloco.syncer.peers.load_places import LoadPlaces
from diloco.syncer.peers.loads import PATIENCE_SECONDS, Loads

pytestmark = pytest.mark.virtual_time


@pytest.fixture
def loads(runner: asyncio.Runner) -> Loads:
    return Loads(runner.get_loop().time, LoadPlaces(1, turn_seconds=4.0))


async def test_a_pull_goes_on_when_the_one_before_has_the_model(loads: Loads) -> None:
    now = asyncio.get_running_loop().time
    for learner in "ab":
        loads.begins(learner)
    await loads.turn("a")
    second = asyncio.ensure_future(loads.turn("b"))
    await asyncio.sleep(1.0)
    assert not second.done()
    began = now()
    loads.ends("a")
    await second
    assert now() == began
    await loads.turn("a")
    await loads.turn("never loads")


async def test_one_that_reads_slowly_does_not_keep_its_place(loads: Loads) -> None:
    for learner in ("slow", "next"):
        loads.begins(learner)
    await loads.turn("slow")  # its transfer goes on for ever
    began = asyncio.get_running_loop().time()
    await loads.turn("next")
    assert asyncio.get_running_loop().time() - began == pytest.approx(4.0)


async def test_one_whose_turn_does_not_come_is_told_how_many_are_ahead(loads: Loads) -> None:
    names = [f"here/cpu/{number}" for number in range(6)]
    for learner in names:
        loads.begins(learner)
    waits = [asyncio.ensure_future(loads.turn(learner)) for learner in names]
    await asyncio.sleep(PATIENCE_SECONDS + 0.1)
    told = "many learners load the model at the same time; {} are to go before here/cpu/{}: try again"
    assert [wait.exception() for wait in waits[:3]] == [None] * 3
    assert [str(wait.exception()) for wait in waits[3:]] == [told.format(n, n + 3) for n in range(3)]
    assert loads.in_line == 3
    await loads.turn("here/cpu/3")


async def test_a_pull_of_a_session_that_is_over_waits_no_longer(loads: Loads) -> None:
    for learner in "ab":
        loads.begins(learner)
    await loads.turn("a")
    waits = asyncio.ensure_future(loads.turn("b"))
    await asyncio.sleep(0)
    loads.ends("b")
    await waits  # the service then refuses it: there is no session
    assert loads.in_line == 0


async def test_a_pull_that_is_cancelled_leaves_its_turn_to_others(loads: Loads) -> None:
    for learner in "abc":
        loads.begins(learner)
    await loads.turn("a")
    gone, there = (asyncio.ensure_future(loads.turn(learner)) for learner in "bc")
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    loads.ends("a")
    await there
