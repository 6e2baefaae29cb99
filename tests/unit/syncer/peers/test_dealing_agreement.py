"""Whose data is dealt when learners have different ones."""

from pathlib import Path
from typing import Any

from diloco.core.dealing.agreement import Data, Known
from diloco.core.dealing.dealer import Dealer
from diloco.core.engine.actions import Member, Merge
from diloco.core.engine.events import LearnerLeft, Merged
from diloco.syncer.peers import dealing
from diloco.syncer.peers.dealing import Dealing
from diloco.wire.errors import RefusedError, UnavailableError
from diloco.wire.messages import Dealt, PushHeader
from tests.support.small_job import small_job
from tests.support.syncer_peers import BESIDE, EPOCH, INCARNATION, THIRD, WHO, Joined, SyncerPeers

RIGHT = Data(10_000, "right")


async def settled(peers: SyncerPeers) -> None:
    while peers.dealing._recording is not None:
        await peers.payloads_checked()


async def joins(peers: SyncerPeers, learner: str, incarnation: int, data: Data = RIGHT, **more: Any) -> Joined:
    joined = await peers.join(learner, sequences=data.sequences, data_digest=data.digest, **more)
    if not joined.over:
        peers.admit(learner, more.get("instance", "process"), incarnation)
    await peers.payloads_checked()
    await settled(peers)
    return joined


async def test_two_learners_put_one_with_other_data_out(peers: SyncerPeers) -> None:
    first = await joins(peers, WHO, INCARNATION, Data(7))
    waits = await joins(peers, BESIDE, INCARNATION + 1)
    assert isinstance(waits.problem, UnavailableError)
    third = await joins(peers, THIRD, INCARNATION + 2)
    assert not third.over
    assert isinstance(first.problem, RefusedError)
    assert f"data: has 7 training sequences, that of {BESIDE} and {THIRD} has {RIGHT}; use" in str(first.problem)
    assert LearnerLeft(WHO, INCARNATION, clean=False) in peers.events
    (piece,) = [one for one in third.told if isinstance(one, Dealt)]
    assert (piece.first, piece.start) == (0, 0)
    assert peers.known == Known(RIGHT, f"{BESIDE} and {THIRD}", fixed=True)
    again = await joins(peers, BESIDE, INCARNATION + 3)
    assert not again.over


async def test_data_of_the_same_size_is_told_by_its_digest(peers: SyncerPeers) -> None:
    for number, learner in enumerate((WHO, BESIDE)):
        await joins(peers, learner, INCARNATION + number)
    other = await joins(peers, THIRD, INCARNATION + 2, Data(10_000, "other"))
    assert isinstance(other.problem, RefusedError)
    assert "(digest other), that of" in str(other.problem)


async def test_two_that_are_admitted_at_once_with_different_data_do_not_mix(peers: SyncerPeers) -> None:
    one = await peers.join(WHO, sequences=7)
    other = await peers.join(BESIDE, sequences=8)
    peers.admit(WHO)
    peers.admit(BESIDE, incarnation=INCARNATION + 1)
    await peers.payloads_checked()
    await settled(peers)
    assert isinstance(other.problem, RefusedError)
    assert not one.over
    assert peers.dealing.dealer.sequences == 7


async def test_the_first_merge_fixes_the_data_and_the_disk_has_it(peers: SyncerPeers) -> None:
    await joins(peers, WHO, INCARNATION)
    header = PushHeader(WHO, INCARNATION, 1, 5, 1, 4, 2, 64, "None", 24, EPOCH, data_from=0, data_to=8)
    assert peers.dealing.accept(header)
    member = Member(WHO, INCARNATION, 1, 4, 2, 64, 1.0, "")
    peers.dealing.merged(Merge(1, 5, (member,), ""), Merged(1, 5, "", 0.1))
    peers.dealing.tick()
    await settled(peers)
    assert peers.known == Known(RIGHT, WHO, fixed=True)
    refused = await joins(peers, BESIDE, INCARNATION + 1, Data(7))
    assert isinstance(refused.problem, RefusedError)


async def test_a_restarted_syncer_knows_what_was_fixed(tmp_path: Path) -> None:
    spec, path = small_job(), tmp_path / "dealt.json"
    for fixed in (True, False):
        dealing._write(path, 500, (), {}, Known(RIGHT, WHO, fixed=fixed))
        again = Dealing.of(spec, spec.pools, path, Dealer().state())
        assert again.dealer.known == Known(RIGHT, WHO, fixed=fixed)
        assert again.dealer.mark == 500


async def test_a_record_of_data_that_was_dropped_does_not_count(tmp_path: Path) -> None:
    spec, path = small_job(), tmp_path / "dealt.json"
    dealing._write(path, 500, (), {}, Known(Data(7), BESIDE))
    state = Dealer(known=Known(RIGHT, WHO, fixed=True)).state()
    again = Dealing.of(spec, spec.pools, path, state)
    assert (again.dealer.known.data, again.dealer.mark) == (RIGHT, 0)
