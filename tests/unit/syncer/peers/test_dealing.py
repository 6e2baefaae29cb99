"""Learners are dealt sequences ahead of what they take, once it is on disk, and only such work is merged."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diloco.core.dealing.agreement import Data, Known
from diloco.core.dealing.dealer import MOST_CLAIMS, Dealer
from diloco.core.engine.actions import Member, Merge
from diloco.core.engine.events import FragmentArrived, FragmentDeclined, Merged
from diloco.runtime.files import UnusableFileError
from diloco.spec import JobSpec
from diloco.syncer.peers import dealing
from diloco.syncer.peers.dealing import Ahead, Dealing
from diloco.wire.messages import Dealt, Join, Leave, PushHeader, PushKey
from tests.support.small_job import small_job
from tests.support.syncer_peers import (
    ANYBODY,
    BESIDE,
    EPOCH,
    INCARNATION,
    TOKENS_PER_STEP,
    WHO,
    Joined,
    SyncerPeers,
    report,
)

KNOWN = Known(Data(10_000, "digest"), "r/p/0", fixed=True)
BATCH, BOUND, INTERVAL = 4, 6, 2
SEQUENCES = 10_000
FIRST = (BOUND + 2 * INTERVAL) * BATCH
"""Sequences that a learner is dealt when it joins."""


def dealt(joined: Joined) -> list[Dealt]:
    found = [message for message in joined.told if isinstance(message, Dealt)]
    joined.told.clear()
    return found


async def joins(peers: SyncerPeers, learner: str = WHO, incarnation: int = INCARNATION, **more: Any) -> Joined:
    joined = await peers.join(learner, **{"sequences": SEQUENCES} | more)
    peers.admit(learner, more.get("instance", "process"), incarnation)
    await peers.payloads_checked()
    await settled(peers)
    return joined


async def settled(peers: SyncerPeers) -> None:
    while peers.dealing._recording is not None:
        await peers.payloads_checked()


async def push(peers: SyncerPeers, first: int, end: int, incarnation: int = INCARNATION) -> bool:
    key = PushKey(WHO, incarnation, 1, 5, 1)
    peers.inbox.ask(key)
    header = PushHeader(*key, 4, 2, 64, "None", 24, EPOCH, data_from=first, data_to=end)
    peers.service.accept_push(header, ANYBODY, lambda: None)[:] = bytes(header.payload_bytes)
    return (await peers.service.pushed(replace(header, payload_digest=bytes(16)))).accepted


async def test_a_learner_is_dealt_what_it_needs_until_its_bound(peers: SyncerPeers) -> None:
    one = await joins(peers)
    assert dealt(one) == [Dealt(0, 0, FIRST)]
    assert peers.recorded[0] >= FIRST
    await one.say(report(INTERVAL))
    assert dealt(one) == []
    await one.say(report(INTERVAL + 1))
    assert [(piece.first, piece.start) for piece in dealt(one)] == [(FIRST, FIRST)]


async def test_no_learner_is_dealt_a_large_part_of_an_epoch_ahead(peers: SyncerPeers) -> None:
    peers.dealing._ahead = replace(peers.dealing._ahead, bound_steps=10**6)
    more = 2 * INTERVAL * BATCH
    assert dealt(await joins(peers)) == [Dealt(0, 0, SEQUENCES // 2 + more)]
    (piece,) = dealt(await joins(peers, BESIDE, INCARNATION + 1))
    assert piece.length == SEQUENCES // 4 + more


async def test_nothing_is_dealt_that_is_not_on_disk(peers: SyncerPeers) -> None:
    peers.disk_full = True
    one = await joins(peers)
    assert dealt(one) == []
    peers.disk_full = False
    peers.dealing.tick()
    await settled(peers)
    assert dealt(one) == [Dealt(0, 0, FIRST)]


async def test_learners_that_join_during_a_write_are_not_counted_each_time() -> None:
    asked: list[str] = []

    def batch_size(learner: str) -> int:
        asked.append(learner)
        return BATCH

    one = Dealing(Dealer(SEQUENCES), Ahead(batch_size, BOUND, INTERVAL, 16), lambda *_: None)
    for number in range(50):
        one.admitted(Join("job", f"r/p/{number}", "process", "", sequences=SEQUENCES), 0, *[lambda _: None] * 2)
    await one.stop()
    assert len(asked) < 50 * 5


async def test_a_process_that_is_refused_says_nothing_of_the_data(peers: SyncerPeers) -> None:
    assert (await peers.join(steps=2**62, sequences=SEQUENCES - 1)).problem is not None
    assert not (await peers.join(BESIDE, sequences=SEQUENCES)).over


async def test_work_on_what_others_were_dealt_is_declined(peers: SyncerPeers) -> None:
    await joins(peers)
    peers.events.clear()
    assert not await push(peers, 0, FIRST + 1)
    assert peers.events == [FragmentDeclined(WHO, INCARNATION, 1, 5, 1)]
    assert peers.inbox.held_bytes == 0
    assert await push(peers, 0, 8)
    assert isinstance(peers.events[-1], FragmentArrived)


async def test_merged_sequences_whose_steps_were_skipped_are_told(peers: SyncerPeers) -> None:
    await joins(peers)
    made = Merged(1, 5, "", 0.1)
    for tokens in (2 * TOKENS_PER_STEP, TOKENS_PER_STEP):
        assert await push(peers, 0, 2 * BATCH)
        member = Member(WHO, INCARNATION, 1, 4, 2, tokens, 1.0, "")
        peers.dealing.merged(Merge(1, 5, (member,), ""), made)
    status = peers.dealing.dealer.status()
    assert (status.epochs[0].merged, status.twice, status.skipped) == (2 * BATCH, 0, BATCH)
    assert Dealer.restored(json.loads(json.dumps(peers.dealing.dealer.state()))).status().skipped == BATCH


async def test_what_a_learner_that_leaves_did_not_push_is_dealt_again(peers: SyncerPeers) -> None:
    one = await joins(peers)
    assert await push(peers, 0, 8)
    await one.say(Leave(INCARNATION, "it is stopped"))
    other = await joins(peers, BESIDE, INCARNATION + 1)
    assert dealt(other) == [Dealt(0, 8, FIRST)]


async def test_a_learner_whose_link_was_cut_keeps_what_it_has(peers: SyncerPeers) -> None:
    one = await joins(peers)
    (piece,) = dealt(one)
    one.hang_up()
    other = await joins(peers, BESIDE, INCARNATION + 1)
    assert dealt(other) == [Dealt(0, FIRST, FIRST)]
    again = await joins(peers, WHO, INCARNATION + 2, dealt=(piece.first, piece.start, piece.length))
    assert dealt(again) == []
    assert await push(peers, 0, 8, INCARNATION + 2)


async def test_what_others_take_from_a_learner_is_on_disk_first(peers: SyncerPeers) -> None:
    one = await joins(peers, sequences=2 * FIRST)
    one.hang_up()
    other = await joins(peers, BESIDE, INCARNATION + 1, sequences=2 * FIRST)
    for _ in range(dealing._LAPSE_TICKS):
        peers.dealing.tick()
    await other.say(report(INTERVAL + 1, INCARNATION + 1))
    await settled(peers)
    for full, revoked in ((True, {}), (False, {WHO: ("process", FIRST)})):
        peers.disk_full = full
        peers.dealing.tick()
        await settled(peers)
        assert peers.revoked == peers.dealing.dealer.revoked == revoked
    await other.say(report(2 * INTERVAL + 4, INCARNATION + 1))
    assert [piece.start // FIRST for piece in dealt(other)] == [1, 2, 0]


async def test_learners_that_take_their_own_data_are_left_alone(peers: SyncerPeers) -> None:
    one = await peers.admitted()
    assert await push(peers, 0, 0)
    await one.say(report(100))
    assert dealt(one) == []


@pytest.fixture
def spec() -> JobSpec:
    return small_job()


async def test_a_syncer_that_stops_leaves_what_it_did_not_deal(tmp_path: Path, spec: JobSpec) -> None:
    path = tmp_path / "dealt.json"
    one = Dealing.of(spec, spec.pools, path, Dealer().state())
    one.dealer.known = KNOWN
    one.dealer.recorded(100)
    one.dealer.joined(WHO, "process", 0, ())
    one.dealer.deal(WHO, 60)
    await one.stop()
    one.released()
    again = Dealing.of(spec, spec.pools, path, one.dealer.state())
    assert again.dealer.undealt() == (100, [(60, 100)], {}, KNOWN)
    path.write_text("{}")
    with pytest.raises(UnusableFileError, match="does not say which sequences may have been dealt"):
        Dealing.of(spec, spec.pools, path, one.dealer.state())


def test_a_full_disk_takes_another_record_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "dealt.json"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(dealing, "write_atomically", full)
        with pytest.raises(OSError, match="No space"):
            dealing._write(path, 10, (), {}, KNOWN)
    dealing._write(path, 99, [(1, 5)], {}, KNOWN)
    monkeypatch.setattr(dealing, "write_atomically", full)
    dealing._write(path, 100_000, (), {}, KNOWN)
    assert dealing.read_record(path) == (100_000, [], {}, KNOWN)


def test_a_full_disk_takes_a_short_record_over_a_long_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "dealt.json"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    long = [(3 * number, 3 * number + 1) for number in range(500)]
    dealing._write(path, 1000, long, {}, KNOWN)
    monkeypatch.setattr(dealing, "write_atomically", full)
    with pytest.raises(OSError, match="No space"):
        dealing._write(path, 1000, [*long, *long], {}, KNOWN)
    dealing._write(path, 2000, (), {}, KNOWN)
    assert dealing.read_record(path) == (2000, [], {}, KNOWN)


def test_a_record_of_another_training_does_not_count(tmp_path: Path, spec: JobSpec) -> None:
    path = tmp_path / "dealt.json"
    dealing._write(path, 500, (), {}, KNOWN)
    assert Dealing.of(spec, spec.pools, path, Dealer().state()).dealer.undealt()[0] == 500
    assert Dealing.of(spec, spec.pools, path, Dealer().state(), anew=True).dealer.undealt()[0] == 0


async def test_a_position_beyond_what_was_dealt_is_not_believed(peers: SyncerPeers) -> None:
    one = await joins(peers)
    end = peers.dealing.dealer.end(WHO)
    assert peers.dealing.reported(WHO, 2**63 - 1) == end
    assert peers.dealing.reported("somebody", 5) == 5
    await one.say(Leave(INCARNATION, "over"))


async def test_a_join_that_claims_without_end_is_refused(peers: SyncerPeers) -> None:
    joined = await peers.join(WHO, sequences=SEQUENCES, dealt=(0, 0, 1) * (MOST_CLAIMS + 1))
    assert "says what it was dealt in" in str(joined.problem)
