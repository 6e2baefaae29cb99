"""No sequence is merged twice in an epoch, whatever learners and the syncer do; what never is, is told."""

import copy
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.core.dealing.dealer import Dealer
from diloco.core.dealing.pieces import Piece
from diloco.learner.data.sampler import Hand
from diloco.spec.status.syncer import EpochStatus
from tests.support.dealing_world import AHEAD, KEEP, SEQUENCES, World
from tests.support.examples import examples

ALL_MERGED = EpochStatus(first=0, last=0, dealt=SEQUENCES, merged=SEQUENCES, lost=0, waiting=0)


ACTIONS: dict[str, Callable[[World, str, int], None]] = {
    "train": World.train,
    "push": World.push,
    "merge": World.merge,
    "cut": World.cut,
    "lapse": World.lapse,
    "join": World.join,
    "start": World.start,
    "leave": World.leave,
    "checkpoint": World.checkpoint,
    "restart": World.restart,
}
OFTEN = ["train"] * 6 + ["push"] * 4 + ["merge"] * 3 + ["join"] * 3 + [*ACTIONS]
STEPS = st.lists(st.tuples(st.sampled_from(OFTEN), st.sampled_from("abcd"), st.integers(0, 5)), max_size=80)


@given(STEPS)
@settings(max_examples=examples(150))
def test_no_sequence_is_merged_twice_and_what_never_is_is_told(steps: list[tuple[str, str, int]]) -> None:
    world = World()
    for name in "ab":
        world.start(name, 0)
    for action, name, how in steps:
        ACTIONS[action](world, name, how)
        world.check()


def run(world: World, speeds: dict[str, int], rounds: int) -> None:
    """Train, push and merge everything."""
    for _ in range(rounds):
        for name, speed in speeds.items():
            world.train(name, speed)
            world.push(name, 0)
            world.push(name, 1)
        while world.pushes:
            world.merge("", 0)
        world.check()


def test_learners_of_other_speeds_share_an_epoch_without_rest() -> None:
    world = World()
    world.start("slow", 0)
    world.start("fast", 0)
    run(world, {"slow": 1, "fast": 3}, 30)
    assert world.dealer.counts()[0] == ALL_MERGED


def test_an_epoch_goes_on_over_scaling_and_kills_without_rest() -> None:
    world = World()
    for name in "ab":
        world.start(name, 0)
    run(world, {"a": 2, "b": 2}, 4)
    for name in "cd":
        world.start(name, 0)
    world.train("a", 5)
    world.start("a", 0)
    run(world, dict.fromkeys("abcd", 1), 4)
    for name in "cd":
        world.leave(name, 0)
    run(world, {"a": 2, "b": 2}, 20)
    assert world.dealer.counts()[0] == ALL_MERGED


def others_took_what_a_had() -> World:
    world = World()
    for name in "ab":
        world.start(name, 0)
    world.train("a", 5)
    world.cut("a", 0)
    world.lapse("a", 0)
    run(world, {"b": 3}, 30)
    return world


def test_others_take_what_a_learner_that_never_returns_had() -> None:
    world = others_took_what_a_had()
    assert world.dealer.counts()[0] == ALL_MERGED


def test_a_learner_that_returns_too_late_drops_its_work_and_goes_on() -> None:
    world = others_took_what_a_had()
    world.join("a", 0)
    run(world, {"a": 3, "b": 3}, 30)
    assert world.merged[0].keys() >= set(range(3 * SEQUENCES))


@pytest.mark.parametrize("checkpoint", ["before it joined", "with less of it", "with all of it"])
def test_what_others_took_stays_theirs_over_a_crash(checkpoint: str) -> None:
    world = World()
    world.start("b", 0)
    if checkpoint != "before it joined":
        world.start("a", 0)
        world.train("a", 5)
        if checkpoint == "with all of it":
            world.train("a", 5)
        world.checkpoint("", 0)
    else:
        world.start("a", 0)
    world.train("a", 5)
    world.cut("a", 0)
    world.lapse("a", 0)
    run(world, {"b": 3}, 30)
    assert len(world.merged[0].keys() & set(range(SEQUENCES))) == SEQUENCES
    world.restart("", 1)
    for name in "ab":
        world.join(name, 0)
    run(world, {"a": 3, "b": 3}, 30)


def test_a_process_that_returned_keeps_its_new_work_over_a_stop() -> None:
    world = others_took_what_a_had()
    world.join("a", 0)
    run(world, {"a": 3}, 1)
    dealer = world.dealer
    held = dealer.left("a", dealer.end("a") - AHEAD)
    assert held > 0
    again = Dealer.restored(dealer.state(), *dealer.undealt())
    assert again.left("a", dealer.end("a") - AHEAD) == held


def test_what_others_took_stays_theirs_though_another_process_came() -> None:
    dealer = Dealer(SEQUENCES)
    dealer.recorded(2 * SEQUENCES)
    for name in "ab":
        dealer.joined(name, name, 0, ())
    dealer.deal("a", 20)
    dealer.deal("b", SEQUENCES - 20)
    checkpoint = copy.deepcopy(dealer.state())
    dealer.absent("a", for_good=False)
    dealer.lapse("a")
    dealer.revoke(dealer.overdue())
    dealer.deal("b", 20)
    dealer.joined("a", "another", 20, ())
    again = Dealer.restored(checkpoint, *dealer.undealt())
    again.joined("a", "a", 0, (Piece(0, 0, 20),))
    assert not again.accept("a", 0, 20, KEEP)


def test_a_link_that_is_cut_for_a_moment_costs_nothing() -> None:
    world = World()
    world.start("a", 0)
    for _ in range(40):
        world.train("a", 3)
        world.cut("a", 0)
        world.join("a", 0)
        run(world, {"a": 1}, 1)
    assert all(epoch.lost == 0 for epoch in world.dealer.counts())


def test_a_syncer_that_stops_on_purpose_loses_nothing() -> None:
    world = World()
    world.start("a", 0)
    for _ in range(20):
        run(world, {"a": 3}, 2)
        world.restart("", 5)
        world.join("a", 0)
    assert all(epoch.lost == 0 for epoch in world.dealer.counts())


def test_a_crash_of_the_syncer_loses_only_what_is_told() -> None:
    world = World()
    world.start("a", 0)
    run(world, {"a": 3}, 4)
    world.restart("", 2)
    world.join("a", 0)
    run(world, {"a": 3}, 60)
    first = world.dealer.counts()[0]
    assert (first.dealt, first.waiting, first.merged) == (SEQUENCES, 0, len(world.merged[0].keys() & set(range(60))))
    assert first.lost == SEQUENCES - first.merged > 0


@pytest.mark.parametrize("known", [True, False], ids=["before the checkpoint", "after it"])
def test_what_a_learner_was_dealt_that_died_with_its_syncer(*, known: bool) -> None:
    world = World()
    if known:
        world.start("a", 0)
    world.checkpoint("", 0)
    if not known:
        world.start("a", 0)
    world.train("a", 5)
    world.push("a", 0)
    world.merge("", 0)
    world.restart("", 0)
    world.start("a", 0)
    run(world, {"a": 4}, 30)
    first = world.dealer.counts()[0]
    assert (first.dealt, first.waiting) == (SEQUENCES, 0)
    # What the checkpoint has is dealt again. What was recorded since, 7 more than was dealt, a learner may have.
    assert first.lost == (7 if known else AHEAD + 7)


def test_what_was_dealt_into_a_broken_session_is_dealt_again() -> None:
    world = World()
    world.start("a", 0)
    world.train("a", 5)
    world.cut("a", 0)
    world.join("a", 5)
    world.join("a", 0)
    world.start("b", 0)
    world.cut("b", 0)
    world.processes["b"].hand = Hand()
    world.join("b", 0)
    run(world, {"a": 3, "b": 3}, 30)
    assert all(epoch.lost == 0 for epoch in world.dealer.counts())


def test_a_process_that_claims_what_others_have_gets_none_of_it() -> None:
    dealer = Dealer(SEQUENCES)
    dealer.joined("honest", "one", 0, ())
    dealer.recorded(40)
    dealer.deal("honest", 20)
    for claim in (Piece(0, 10, 20), Piece(0, 25, 5), Piece(0, 60, 9)):
        dealer.joined("liar", f"{claim}", 0, (claim,))
        assert not dealer.accept("liar", claim.first, claim.end, KEEP)
    assert [piece.start for piece in dealer.deal("liar", 9)] == [20]


def test_long_jobs_keep_a_sum_of_epochs_long_past() -> None:
    dealer = Dealer(4)
    dealer.joined("a", "one", 0, ())
    for end in range(4, 4 * 100, 4):
        dealer.recorded(end)
        dealer.deal("a", 4)
        assert dealer.accept("a", end - 4, end, 4)
        dealer.merge("a", end - 4, end)
    counts = dealer.counts()
    assert (len(counts), counts[0].first, sum(one.merged for one in counts)) == (33, 0, 396)
    assert sum(one.lost + one.waiting for one in counts) == 0
    assert len(str(dealer.state())) < 500


def test_a_learner_whose_sequences_others_took_is_dealt_new_ones() -> None:
    dealer = Dealer(SEQUENCES)
    dealer.recorded(3 * SEQUENCES)
    dealer.joined("a", "first", 0, ())
    dealer.deal("a", 40)  # its session breaks before it hears of them
    dealer.absent("a", for_good=False)
    dealer.joined("b", "second", 0, ())
    dealer.deal("b", SEQUENCES)
    assert dealer.left("a", 0) == 40, "while it may come back"
    dealer.lapse("a")
    dealer.revoke(dealer.overdue())
    assert dealer.joined("a", "first", 0, ()) == ()
    assert dealer.left("a", 0) == 0
    (piece,) = dealer.deal("a", 8)
    assert (piece.first, piece.length) == (40, 8)


def test_what_a_checkpoint_gives_to_a_learner_is_not_left_for_others() -> None:
    dealer = Dealer(SEQUENCES)
    dealer.recorded(20)
    dealer.joined("a", "first", 0, ())
    dealer.deal("a", 10)
    again = Dealer.restored(dealer.state(), 20, [(5, 20)])
    again.recorded(20)
    again.joined("b", "second", 0, ())
    assert [piece.start for piece in again.deal("b", 20)] == [10]


def test_long_dealing_without_an_outer_gradient_keeps_few_pieces() -> None:
    dealer = Dealer(SEQUENCES)
    for name in "ab":
        dealer.joined(name, name, 0, ())
    for count in range(0, 4000, 8):
        for name in "ab":
            dealer.recorded(dealer.next_mark(8) or 0)
            dealer.deal(name, 8)
            dealer.trim(name, count - 64)
    assert max(len(holder["pieces"]) for holder in dealer.state()["holders"].values()) <= 10
