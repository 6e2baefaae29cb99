"""No sequence is merged twice in an epoch, whatever learners and the syncer do; what never is, is told."""

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.core.dealing.dealer import Dealer, Revoked
from diloco.core.dealing.pieces import Piece
from diloco.learner.mailboxes.hand import Hand
from diloco.spec.status.syncer import EpochStatus

SEQUENCES, AHEAD, KEEP, FRAGMENTS = 60, 20, 30, 2
ALL_MERGED = EpochStatus(first=0, last=0, dealt=SEQUENCES, merged=SEQUENCES, lost=0, waiting=0)


class Process:
    """A learner's process: its hand, and by fragment the positions in its next outer gradient."""

    def __init__(self, instance: str, position: int) -> None:
        self.instance, self.hand = instance, Hand()
        self.hand.position = position
        self.began = [position] * FRAGMENTS
        self.work: list[list[int]] = [[] for _ in range(FRAGMENTS)]
        self.joined = False

    def receive(self, fragment: int) -> None:
        self.began[fragment], self.work[fragment] = self.hand.position, []

    def train(self, count: int) -> None:
        if self.hand.jump():
            for fragment in range(FRAGMENTS):
                self.receive(fragment)
        if self.hand.position + count - min(self.began) > KEEP or not self.hand.has(count):
            return
        for start, stop in self.hand.take(count, min(self.began)):
            for work in self.work:
                work.extend(range(start, stop))


@dataclass
class World:
    """A job: what is on disk, a syncer, learners, and what its model has."""

    dealer: Dealer = field(default_factory=lambda: Dealer(SEQUENCES))
    disk: tuple[int, list[tuple[int, int]], Revoked] = field(default_factory=lambda: (0, [], {}))
    processes: dict[str, Process] = field(default_factory=dict)
    pushes: list[tuple[str, int, int, int, list[int]]] = field(default_factory=list)
    merged: list[Counter[int]] = field(default_factory=lambda: [Counter() for _ in range(FRAGMENTS)])
    checkpoints: list[tuple[dict[str, Any], list[Counter[int]]]] = field(default_factory=list)
    instances: int = 0
    ends: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.checkpoint("", 0)

    def start(self, name: str, _: int) -> None:
        """A new process takes the place of another, which is killed if it runs."""
        self.cut(name, 0)
        self.instances += 1
        self.processes[name] = Process(f"process {self.instances}", self.ends[name])
        self.join(name, 0)

    def join(self, name: str, lost: int) -> None:
        process = self.processes.get(name)
        if process is None or process.joined:
            return
        process.joined = True
        hand = process.hand
        for piece in self.dealer.joined(name, process.instance, hand.position, hand.claims()):
            hand.put(piece)
        self.deal(name, lost)

    def deal(self, name: str, lost: int) -> None:
        """Deal ahead; a message is lost, and the session with it, if ``lost`` is 5."""
        process = self.processes.get(name)
        if process is None or not process.joined:
            return
        wanted = AHEAD - self.dealer.left(name, process.hand.position)
        if wanted > 0 and (mark := self.dealer.next_mark(wanted)) is not None:
            self.disk = (mark + 7, [], dict(self.dealer.revoked))
            self.dealer.recorded(mark + 7)
        if overdue := self.dealer.overdue():
            self.disk = (self.dealer.undealt()[0], [], {**self.dealer.revoked, **overdue})
            self.dealer.recorded(self.disk[0])
            self.dealer.revoke(overdue)
        for piece in self.dealer.deal(name, wanted) if wanted > 0 else ():
            if lost == 5:
                self.cut(name, 0)
                return
            process.hand.put(piece)

    def train(self, name: str, count: int) -> None:
        if name in self.processes:
            self.processes[name].train(count)
            self.ends[name] = max(self.ends[name], self.processes[name].hand.position)
            self.deal(name, 0)

    def push(self, name: str, fragment: int) -> None:
        """Fragments above the last: received without a push."""
        process = self.processes.get(name)
        if process is None or not process.joined:
            return
        one = fragment % FRAGMENTS
        began, end = process.began[one], process.hand.position
        if fragment < 2 * FRAGMENTS and process.work[one] and self.dealer.accept(name, began, end, KEEP):
            self.pushes.append((name, one, began, end, process.work[one]))
        process.receive(one)

    def merge(self, _: str, discarded: int) -> None:
        if self.pushes:
            name, fragment, began, end, work = self.pushes.pop(0)
            if discarded != 5:
                self.dealer.merge(name, began, end)
                self.dealer.close()
                self.merged[fragment].update(work)

    def cut(self, name: str, _: int) -> None:
        if name in self.processes and self.processes[name].joined:
            self.processes[name].joined = False
            self.dealer.absent(name, for_good=False)

    def lapse(self, name: str, _: int) -> None:
        if name in self.dealer.away:
            self.dealer.lapse(name)

    def leave(self, name: str, _: int) -> None:
        process = self.processes.pop(name, None)
        if process is not None and process.joined:
            self.dealer.absent(name, for_good=True)

    def checkpoint(self, _: str, __: int) -> None:
        self.checkpoints.append((copy.deepcopy(self.dealer.state()), copy.deepcopy(self.merged)))

    def restart(self, _: str, how: int) -> None:
        """From an older checkpoint. Odd: learners bring back what was merged since. 5: it stopped on purpose."""
        if how == 5:
            self.checkpoint("", 0)
            self.disk = copy.deepcopy(self.dealer.undealt())
        at = -1 if how == 5 else -min(1 + how // 2, len(self.checkpoints))
        state, merged = self.checkpoints[at]
        self.dealer = Dealer.restored(copy.deepcopy(state), *self.disk)
        self.pushes = []
        if how % 2 == 0:
            self.merged = copy.deepcopy(merged)
        for process in self.processes.values():
            process.joined = False
            for fragment in range(FRAGMENTS) if how % 2 == 0 else ():
                process.receive(fragment)

    def check(self) -> None:
        for merged in self.merged:
            assert max(merged.values(), default=0) <= 1, "merged twice"
        assert self.dealer.twice == 0
        trained = {number for merged in self.merged for number in merged}
        for epoch in self.dealer.counts():
            assert epoch.dealt == epoch.merged + epoch.lost + epoch.waiting
            first, stop = epoch.first * SEQUENCES, (epoch.last + 1) * SEQUENCES
            assert len(trained & set(range(first, stop))) >= epoch.merged, "never, and not told as lost"


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
@settings(max_examples=150, deadline=None)
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


def test_what_may_have_been_merged_since_a_checkpoint_is_lost() -> None:
    for known in (True, False):  # whether the checkpoint has the learner
        world = World()
        if known:
            world.start("a", 0)
        world.checkpoint("", 0)
        if not known:
            world.start("a", 0)
        world.train("a", 5)
        world.push("a", 0)
        world.merge("", 0)
        world.restart("", 1)
        if not known:
            world.join("a", 0)
        world.start("a", 0)
        run(world, {"a": 4}, 30)
        first = world.dealer.counts()[0]
        assert (first.dealt, first.waiting) == (SEQUENCES, 0)
        assert first.lost >= 20


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
