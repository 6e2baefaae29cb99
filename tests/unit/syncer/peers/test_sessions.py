"""Who gets a session, what it is told, and by whom it is ended."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from diloco.core.engine.actions import Fence, Refusal, Refuse
from diloco.core.engine.events import LearnerJoined, LearnerLeft
from diloco.wire.errors import RefusedError, UnavailableError
from diloco.wire.messages import Alive, Leave, Ready, Refused, Welcome
from tests.support.syncer_peers import (
    BESIDE,
    EPOCH,
    INCARNATION,
    LAYOUT,
    PROGRESS,
    VERSION,
    WHO,
    Joined,
    SyncerPeers,
    settle,
)


async def test_a_process_is_welcomed_once_the_engine_admits_it(peers: SyncerPeers) -> None:
    joined = await peers.join(steps=5, data_position=20)
    assert joined.told == []
    assert peers.sessions.admitted == 0
    assert not peers.sessions.current(WHO, INCARNATION)
    peers.admit(steps=5)
    assert joined.told == [Welcome(INCARNATION, EPOCH, (), (VERSION, VERSION), 5, 20, PROGRESS, connections=8)]
    assert peers.sessions.admitted == 1
    assert peers.sessions.current(WHO, INCARNATION)
    assert not peers.sessions.current(WHO, INCARNATION + 1)
    assert not peers.sessions.current(BESIDE, INCARNATION)
    assert peers.events == [LearnerJoined(WHO, "process", (), 5, 20)]


@pytest.mark.parametrize(
    ("epoch", "versions", "known"),
    [
        (EPOCH, (4, 3), (4, 3)),
        ("2", (4, 3), ()),
        ("", (), ()),
        (EPOCH, (4,), ()),
        (EPOCH, (4, 3, 2), ()),
    ],
)
async def test_only_versions_of_this_syncer_and_model_are_believed(
    peers: SyncerPeers, epoch: str, versions: tuple[int, ...], known: tuple[int, ...]
) -> None:
    await peers.join(epoch=epoch, versions=versions)
    assert peers.events == [LearnerJoined(WHO, "process", known, 0, 0)]


@pytest.mark.parametrize(
    ("join", "message"),
    [
        ({"job": "other"}, "this is the syncer of job 'job', not of 'other'"),
        ({"layout_digest": "0" * 64}, "has another model than the syncer"),
        (
            {"layout_digest": f"{LAYOUT.cut}.other"},
            "has other frozen parameters or buffers than the syncer: give both the same base",
        ),
    ],
)
async def test_a_process_that_is_none_of_this_job_is_refused(join: dict[str, Any], message: str) -> None:
    peers = SyncerPeers(layout=replace(LAYOUT, constants="base"))
    joined = await peers.join(**join)
    assert joined.over
    assert isinstance(joined.problem, RefusedError)
    assert message in str(joined.problem)
    assert peers.events == []


async def test_a_process_that_cannot_have_come_so_far_is_refused(peers: SyncerPeers) -> None:
    joined = await peers.join(steps=2**62)
    assert isinstance(joined.problem, RefusedError)
    assert "r/p/0 joins with 4611686018427387904 steps" in str(joined.problem)
    assert peers.events == []


async def test_unplanned_learners_are_let_in_until_there_are_too_many(peers: SyncerPeers) -> None:
    for index in (100, 101, 103):
        assert not (await peers.join(f"r/p/{index}")).over
    peers.admit("r/p/100")
    turned_away = await peers.join("r/p/102")
    assert isinstance(turned_away.problem, UnavailableError)
    assert "cannot admit 'r/p/102'" in str(turned_away.problem)


async def test_one_that_gives_up_before_it_is_admitted_makes_room(peers: SyncerPeers) -> None:
    waiting = [await peers.join(f"r/p/{index}") for index in (100, 101, 103)]
    waiting[0].hang_up()
    await settle()
    assert not (await peers.join("r/p/102")).over


async def test_one_that_left_before_it_was_admitted_is_reported_as_gone(peers: SyncerPeers) -> None:
    (await peers.join()).hang_up()
    await settle()
    peers.events.clear()
    peers.admit()
    assert peers.events == [LearnerLeft(WHO, INCARNATION, clean=False)]
    assert peers.sessions.admitted == 0


async def test_what_learners_with_a_session_compute_in_is_known(peers: SyncerPeers) -> None:
    await peers.join(computes="BF16 on NVIDIA L4")
    assert peers.sessions.computing == ""
    peers.admit()
    assert peers.sessions.computing == "BF16 on NVIDIA L4"
    await peers.join(learner=BESIDE, computes="F32 on cpu")
    peers.admit(learner=BESIDE)
    assert peers.sessions.computing == "BF16 on NVIDIA L4 (1 learners), F32 on cpu (1 learners)"


async def test_what_they_computed_in_is_known_after_their_sessions(peers: SyncerPeers) -> None:
    first = await peers.join(computes="BF16 on NVIDIA L4")
    peers.admit()
    second = await peers.join(learner=BESIDE, computes="F32 on cpu")
    peers.admit(learner=BESIDE)
    first.hang_up()
    await settle()
    assert (peers.sessions.admitted, peers.sessions.computing) == (1, "F32 on cpu")
    second.hang_up()
    await settle()
    both = "BF16 on NVIDIA L4 (1 learners), F32 on cpu (1 learners)"
    assert (peers.sessions.admitted, peers.sessions.computing) == (0, both)


async def test_a_process_that_joins_again_has_one_session(peers: SyncerPeers) -> None:
    first = await peers.join()
    second = await peers.join()
    assert first.over
    assert first.problem is None
    peers.admit()
    assert first.told == []
    assert len(second.told) == 1
    third = await peers.join()
    assert not second.over
    peers.admit(incarnation=INCARNATION)
    await third.say(Alive(INCARNATION))
    assert second.problem is None  # and it is over
    assert peers.sessions.admitted == 1
    assert not any(isinstance(event, LearnerLeft) for event in peers.events)


async def test_a_refused_process_is_told_why_and_its_session_ends(peers: SyncerPeers) -> None:
    joined = await peers.join()
    peers.sessions.refuse(Refuse(WHO, "another", Refusal.SUPERSEDED, "not this one"))
    assert joined.told == []
    peers.sessions.refuse(Refuse(WHO, "process", Refusal.UNKNOWN_LEARNER, "there is no such learner"))
    await joined.say()
    assert joined.told == [Refused("UnknownLearner", "there is no such learner")]
    assert joined.over
    assert joined.problem is None


async def test_a_fenced_process_is_told_why_and_heard_no_more(peers: SyncerPeers) -> None:
    joined = await peers.admitted()
    peers.sessions.fence(Fence(WHO, INCARNATION + 1, Refusal.SUPERSEDED, "not this one"))
    peers.sessions.fence(Fence(BESIDE, INCARNATION, Refusal.SUPERSEDED, "nor this one"))
    assert joined.told == []
    peers.sessions.fence(Fence(WHO, INCARNATION, Refusal.LEASE_EXPIRED, "it was silent"))
    assert not peers.sessions.current(WHO, INCARNATION)
    await joined.say()
    assert joined.told == [Refused("LeaseExpired", "it was silent")]
    assert joined.over
    assert joined.problem is None
    assert peers.events == []  # the engine knows


async def test_a_learner_that_broke_a_rule_is_told_which_and_reported_as_gone(peers: SyncerPeers) -> None:
    joined = await peers.admitted()
    peers.sessions.end(WHO, INCARNATION + 1, "not this one")
    peers.sessions.end(BESIDE, INCARNATION, "nor this one")
    await joined.say()
    assert not joined.over
    peers.sessions.end(WHO, INCARNATION, "it cheats")
    await joined.say()
    assert isinstance(joined.problem, RefusedError)
    assert str(joined.problem) == "it cheats"
    assert peers.events == [LearnerLeft(WHO, INCARNATION, clean=False)]


async def test_messages_go_to_the_process_they_are_for(peers: SyncerPeers) -> None:
    one, two = await peers.admitted(WHO, 7), await peers.admitted(BESIDE, 8)
    peers.sessions.send(WHO, 7, PROGRESS)
    peers.sessions.send(WHO, 8, replace(PROGRESS, tokens=1))
    peers.sessions.send("r/p/9", 7, replace(PROGRESS, tokens=2))
    assert (one.told, two.told) == ([PROGRESS], [])
    peers.sessions.send_all(PROGRESS)
    assert (one.told, two.told) == ([PROGRESS] * 2, [PROGRESS])


async def test_a_learner_that_cannot_be_told_anything_loses_only_its_session(peers: SyncerPeers) -> None:
    one, two = await peers.admitted(WHO, 7), await peers.admitted(BESIDE, 8)
    one.unreachable = UnavailableError("the connection broke")
    peers.sessions.send_all(PROGRESS)
    await one.say()
    assert one.over
    assert peers.events == [LearnerLeft(WHO, 7, clean=False)]
    assert two.told == [PROGRESS]
    assert not two.over


@pytest.mark.parametrize("clean", [True, False])
async def test_it_is_known_whether_a_learner_left_on_purpose(peers: SyncerPeers, *, clean: bool) -> None:
    joined = await peers.admitted()
    if clean:
        await joined.say(Leave(INCARNATION, "its work is done"), Alive(INCARNATION))
    else:
        joined.hang_up()
        await settle()
    assert joined.over
    assert joined.problem is None
    assert peers.events == [LearnerLeft(WHO, INCARNATION, clean=clean)]
    assert peers.sessions.admitted == 0


async def test_a_call_that_is_broken_off_leaves_no_session_behind(peers: SyncerPeers) -> None:
    joined = await peers.admitted()
    await joined.break_off()
    assert joined.over
    assert peers.events == [LearnerLeft(WHO, INCARNATION, clean=False)]
    assert len(asyncio.all_tasks()) == 1  # this one


async def loads(peers: SyncerPeers) -> Joined:
    """A process that was admitted and has the model to load."""
    joined = await peers.join()
    peers.admit(load=(0, 1))
    assert peers.loads.loads(WHO)
    return joined


async def says_it_has_the_model(peers: SyncerPeers, joined: Joined) -> None:
    await joined.say(Ready(INCARNATION + 1))
    assert peers.loads.loads(WHO)
    await joined.say(Ready(INCARNATION))


async def breaks_off(_: SyncerPeers, joined: Joined) -> None:
    await joined.break_off()


async def is_fenced(peers: SyncerPeers, _: Joined) -> None:
    peers.sessions.fence(Fence(WHO, INCARNATION, Refusal.LEASE_EXPIRED, "silent"))


async def joins_again_with_all(peers: SyncerPeers, _: Joined) -> None:
    await peers.join(instance="another")
    peers.admit(instance="another", incarnation=INCARNATION + 1)


@pytest.mark.parametrize("end", [says_it_has_the_model, breaks_off, is_fenced, joins_again_with_all])
async def test_a_learner_loads_until_it_has_the_model_or_its_session_ends(
    peers: SyncerPeers, end: Callable[[SyncerPeers, Joined], Coroutine[Any, Any, None]]
) -> None:
    joined = await loads(peers)
    await end(peers, joined)
    assert not peers.loads.loads(WHO)


async def test_the_end_of_a_session_that_was_replaced_ends_no_load(peers: SyncerPeers) -> None:
    replaced = await loads(peers)
    await peers.join(instance="another")
    peers.admit(instance="another", incarnation=INCARNATION + 1, load=(0,))
    await replaced.say(Ready(INCARNATION + 1))
    await replaced.break_off()
    assert peers.loads.loads(WHO)


@pytest.mark.parametrize(
    ("theirs", "ours", "counts"),
    [("a", "b", (0, 0)), ("a", "a", (5, 20)), ("", "b", (5, 20)), ("a", "", (5, 20))],
)
async def test_how_far_a_checkpoint_of_another_training_came_does_not_count(
    theirs: str, ours: str, counts: tuple[int, int]
) -> None:
    peers = SyncerPeers(training=ours)
    joined = await peers.join(steps=5, data_position=20, training=theirs)
    assert peers.events == [LearnerJoined(WHO, "process", (), *counts)]
    peers.admit(steps=counts[0])
    (welcome,) = joined.told
    assert isinstance(welcome, Welcome)
    assert welcome.training == ours
