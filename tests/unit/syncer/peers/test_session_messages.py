"""What is handed on to the engine of what an admitted learner says, and what ends its session."""

from dataclasses import replace

import pytest

from diloco.core.account.time_spent import TimeSpent
from diloco.core.engine.events import (
    Evaluated,
    Event,
    FragmentApplied,
    FragmentDeclined,
    LearnerAlive,
    LearnerLeft,
    LearnerReady,
    StepReported,
)
from diloco.syncer.peers.message_rate import AT_ONCE
from diloco.wire.errors import InvalidMessageError
from diloco.wire.messages import Alive, Applied, Declined, EvaluationReport, Join, LearnerMessage, Ready
from tests.support.syncer_peers import INCARNATION, VERSION, WHO, SyncerPeers, report

SPENT = TimeSpent(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)


@pytest.mark.parametrize(
    ("message", "event"),
    [
        (replace(report(3), spent=SPENT), StepReported(WHO, INCARNATION, 3, 192, 0.5, 2.0, 12, SPENT)),
        (Ready(INCARNATION), LearnerReady(WHO, INCARNATION)),
        (Alive(INCARNATION), LearnerAlive(WHO, INCARNATION)),
        (Declined(INCARNATION, 1, 5, 2), FragmentDeclined(WHO, INCARNATION, 1, 5, 2)),
        (Declined(INCARNATION, 1, 5, 2, broken=True), FragmentDeclined(WHO, INCARNATION, 1, 5, 2, broken=True)),
        (Applied(INCARNATION, 1, VERSION, 9), FragmentApplied(WHO, INCARNATION, 1, VERSION, 9)),
        (EvaluationReport(INCARNATION, 2, 1.5, exact=True), Evaluated(WHO, INCARNATION, 2, 1.5, exact=True)),
        # The engine ignores what another incarnation says; nothing is held against this one.
        (report(10**6, incarnation=3), StepReported(WHO, 3, 10**6, 64 * 10**6, 0.5, 2.0, 4 * 10**6)),
    ],
    ids=["step", "ready", "alive", "declined", "broken", "applied", "evaluated", "of another incarnation"],
)
async def test_what_an_admitted_learner_says_is_handed_on(
    peers: SyncerPeers, message: LearnerMessage, event: Event
) -> None:
    joined = await peers.join()
    peers.events.clear()
    await joined.say(message)
    assert peers.events == []  # not admitted yet
    peers.admit()
    peers.clock.now += 10.0
    await joined.say(message)
    assert peers.events == [event]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (Declined(INCARNATION, 2, 5, 1), "fragment 2 of 2: they count from 0"),
        (Applied(INCARNATION, 2, 1), "fragment 2 of 2: they count from 0"),
        (Applied(INCARNATION, 0, VERSION + 1), "fragment 0 has no version 5 yet"),
        (Join("job", WHO, "process", ""), "Join is not expected in an open session"),
        (report(1), "r/p/0 reports step 1 with 64 tokens after step 2 with 128: neither may go back"),
        (InvalidMessageError("not a LearnerMessage"), "not a LearnerMessage"),
    ],
)
async def test_a_message_that_cannot_be_ends_the_session_by_name(
    peers: SyncerPeers, message: LearnerMessage | InvalidMessageError, problem: str
) -> None:
    joined = await peers.admitted()
    await joined.say(report(2), message)
    assert isinstance(joined.problem, InvalidMessageError)
    assert problem in str(joined.problem)
    assert peers.events[1:] == [LearnerLeft(WHO, INCARNATION, clean=False)]


async def test_a_flood_of_messages_is_read_more_slowly(peers: SyncerPeers) -> None:
    joined = await peers.admitted()
    await joined.say(*[Alive(INCARNATION)] * int(AT_ONCE))
    assert len(peers.events) == AT_ONCE
    await joined.say(*[Alive(INCARNATION)] * 2000)  # the clock stands still: all of them would take half an hour
    assert len(peers.events) < AT_ONCE + 2000


async def test_pulls_are_measured_by_the_learner_that_receives_them(peers: SyncerPeers) -> None:
    joined = await peers.admitted()
    for step in range(1, 5):
        await joined.say(report(step, receiving_seconds=0.5 * step, received_bytes=1000 * step))
        peers.meter.sample(peers.clock.now)
        peers.clock.now += 10.0
    assert peers.meter.rates(WHO).down == 2000.0
