"""Pulls that wait for a version: which are served, which are refused, and that nothing of them is left over."""

import asyncio
from collections.abc import Callable

import pytest

from diloco.syncer.peers.posted_pulls import PostedPulls
from diloco.wire.errors import RefusedError, UnavailableError

FOREVER = 3600.0


async def outcome(posted: PostedPulls, happens: Callable[[], object]) -> str:
    """How a pull of fragment 3 by learner "a" ends once this happens; empty: it is served."""
    pull = asyncio.ensure_future(posted.next_version("a", 1, 3))
    await asyncio.sleep(0)
    assert posted.waiting == 1
    happens()
    try:
        await pull
    except (RefusedError, UnavailableError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        assert posted.waiting == 0
    return ""


@pytest.mark.parametrize(
    ("happens", "ends"),
    [
        (lambda posted: posted.made(3), ""),
        (lambda posted: posted.session_over("a", 1), "RefusedError: incarnation 1 of a has no session here"),
        (lambda posted: posted.admitted("a", 2), "RefusedError: incarnation 1 of a has no session here"),
        (lambda posted: posted.stop(), "UnavailableError: the syncer stops"),
    ],
    ids=["made", "session over", "another process", "stopped"],
)
async def test_a_pull_ends_with_what_it_waits_for(happens: Callable[[PostedPulls], None], ends: str) -> None:
    posted = PostedPulls(FOREVER)
    assert await outcome(posted, lambda: happens(posted)) == ends


async def test_a_pull_is_not_disturbed_by_what_happens_to_others() -> None:
    posted = PostedPulls(FOREVER)

    def happens() -> None:
        posted.made(2)
        posted.session_over("b", 1)
        posted.session_over("a", 7)
        posted.admitted("a", 1)
        posted.admitted("b", 2)
        assert posted.waiting == 1
        posted.made(3)

    assert await outcome(posted, happens) == ""


async def test_no_pull_waits_longer_than_the_bound() -> None:
    ends = await outcome(PostedPulls(0.01), lambda: None)
    assert ends == "RefusedError: the next version of fragment 3 was not made in 0.01 s"


async def test_a_later_pull_of_a_fragment_takes_the_place_of_the_one_before() -> None:
    posted = PostedPulls(FOREVER)
    first = asyncio.ensure_future(posted.next_version("a", 1, 3))
    await asyncio.sleep(0)
    later = [asyncio.ensure_future(posted.next_version(learner, 1, 3)) for learner in "ab"]
    await asyncio.wait({first})
    assert "has taken its place" in str(first.exception())
    assert posted.waiting == 2
    posted.made(3)
    await asyncio.gather(*later)
    assert posted.waiting == 0


async def test_a_learner_that_hangs_up_leaves_nothing_behind() -> None:
    posted = PostedPulls(FOREVER)
    pull = asyncio.ensure_future(posted.next_version("a", 1, 3))
    await asyncio.sleep(0)
    pull.cancel()
    await asyncio.wait({pull})
    posted.made(3)
    assert posted.waiting == 0


async def test_nobody_begins_to_wait_for_a_syncer_that_stops() -> None:
    posted = PostedPulls(FOREVER)
    posted.stop()
    with pytest.raises(UnavailableError):
        await posted.next_version("a", 1, 3)
