"""A job of one dealer, its disk, learners' hands and a model, in which tests let anything happen in any order."""

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from diloco.core.dealing.agreement import Known
from diloco.core.dealing.dealer import Dealer, Revoked
from diloco.learner.data.sampler import Hand

SEQUENCES, AHEAD, KEEP, FRAGMENTS = 60, 20, 30, 2


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
    disk: tuple[int, list[tuple[int, int]], Revoked, Known | None] = (0, [], {}, None)
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
            self.disk = (mark + 7, [], dict(self.dealer.revoked), self.dealer.known)
            self.dealer.recorded(mark + 7)
        if overdue := self.dealer.overdue():
            self.disk = (self.dealer.mark, [], {**self.dealer.revoked, **overdue}, self.dealer.known)
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
        """From an older checkpoint, whose model all learners load. 5: it stopped on purpose."""
        if how == 5:
            self.checkpoint("", 0)
            self.disk = copy.deepcopy(self.dealer.undealt())
        at = -1 if how == 5 else -min(1 + how // 2, len(self.checkpoints))
        state, merged = self.checkpoints[at]
        self.dealer = Dealer.restored(copy.deepcopy(state), *self.disk)
        self.pushes = []
        self.merged = copy.deepcopy(merged)
        for process in self.processes.values():
            process.joined = False
            for fragment in range(FRAGMENTS):
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
