"""An engine among learner processes that come, go, answer and return in any order. Every action is checked.

Each process behaves as a real one does: it answers with what it has trained since it received a fragment, and makes no
step beyond the staleness bound. What reaches the engine besides is what the syncer's checks let through: late and
repeated outer gradients, and messages of incarnations that are over.
"""

import json

from diloco.core.engine.actions import Action, Admit, Merge
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import (
    Evaluated,
    FragmentApplied,
    FragmentArrived,
    FragmentDeclined,
    LearnerJoined,
    LearnerLeft,
    LearnerReady,
    LearnersPlanned,
    LeftOut,
    Merged,
    StepReported,
    TimerFired,
)
from diloco.spec.names.learner_ids import pool_of
from tests.support.engine_checks import TOKENS_PER_STEP, CheckedEngine, Process, key_of


class World(CheckedEngine):
    """What may happen to an engine."""

    def join(self, learner: str, *, another: bool) -> None:
        """A process joins: the one that was there before, or ``another``."""
        process = self.processes.get(learner)
        if process is None or another:
            if process is not None:
                # An engine that goes on from a checkpoint does not know those that joined after it.
                if self.admitted.get(learner) == process.instance:
                    self.earlier.append(process)
                self._remember(process)
            self._started += 1
            process = Process(learner, f"process {self._started}")
            self.processes[learner] = process
        else:
            self._remember(process)
        self._join(process)

    def earlier_returns(self, process: Process) -> None:
        """A process joins whose place another one has taken: it must not get it back."""
        actions = self._join(process)
        assert not any(isinstance(action, Admit) for action in actions), "a superseded process was admitted"

    def _join(self, process: Process) -> list[Action]:
        comparable = process.training and process.epoch == self.epoch
        # It holds only what it has received in this epoch.
        held = (-1 if fragment in process.load else version for fragment, version in enumerate(process.versions))
        versions = tuple(held) if comparable else ()
        return self.do(LearnerJoined(process.learner, process.instance, versions, process.steps, process.steps))

    def load(self, process: Process) -> None:
        """A process that was admitted receives what it has to load, and begins to train."""
        for fragment in sorted(process.load):
            self._receive(process, fragment, self.versions[fragment])
        process.load.clear()
        process.training = True
        self.do(LearnerReady(process.learner, process.incarnation))

    def step(self, process: Process, count: int, seconds: float) -> None:
        """A process makes steps, up to the staleness bound, and reports the last."""
        room = self.options.max_staleness_steps - (process.steps - min(process.received_at))
        if not process.training or room <= 0:
            return
        process.steps += min(count, room)
        tokens = process.steps * TOKENS_PER_STEP
        self.do(StepReported(process.learner, process.incarnation, process.steps, tokens, seconds, 2.0, process.steps))

    def answer(self, process: Process, fragment: int) -> None:
        """A process answers a request, with what it has trained since it received the fragment."""
        ask = process.asks.pop(fragment)
        steps = process.steps - process.received_at[fragment]
        key = key_of(ask)
        if steps <= 0:
            self.do(FragmentDeclined(*key))
            return
        digest = f"{len(self.pushed):032x}"
        base = process.versions[fragment]
        self.push(FragmentArrived(*key, base, steps, steps * TOKENS_PER_STEP, 64, digest))

    def push(self, event: FragmentArrived) -> None:
        """An outer gradient is complete."""
        self.pushed.append(event)
        self.do(event)

    def receive_news(self, process: Process, fragment: int) -> None:
        """A process swaps in the newest version that it was told of."""
        self._receive(process, fragment, process.news[fragment])

    def _receive(self, process: Process, fragment: int, version: int) -> None:
        process.news.pop(fragment, None)
        process.versions[fragment] = version
        process.received_at[fragment] = process.steps
        self.do(FragmentApplied(process.learner, process.incarnation, fragment, version, process.steps))

    def merge_done(self, merge: Merge, *, failed: bool = False, left_out: tuple[LeftOut, ...] = ()) -> None:
        """A merge ends."""
        self.merges.remove(merge)
        if not self.finished:
            self.versions[merge.fragment] += 1
            assert self.versions[merge.fragment] == merge.version, "a merge made another version than the next"
        self.do(Merged(merge.fragment, merge.version, "0" * 32, 0.01, failed=failed, left_out=left_out))

    def leave(self, process: Process, *, clean: bool) -> None:
        """A session ends."""
        self._remember(process)
        self.sessions.pop(process.learner, None)
        self.do(LearnerLeft(process.learner, process.incarnation, clean))

    def evaluated(self, process: Process, loss: float, *, exact: bool) -> None:
        """A process says what loss it found."""
        assert process.evaluation is not None
        number, process.evaluation = process.evaluation.evaluation, None
        self.do(Evaluated(process.learner, process.incarnation, number, loss, exact))

    def fair_turn(self, process: Process) -> None:
        """A process does all that there is to do, and makes a step."""
        if not self.current(process):
            self.join(process.learner, another=False)
            if not self.current(process):
                return
        if process.load or not process.training:
            self.load(process)
        if self.engine._state.learners[process.learner].state == "Loading":
            self.load(process)
        self.step(process, 1, 1.0)
        self.respond(process)

    def respond(self, process: Process) -> None:
        """A process does all that there is to do but a step."""
        while self.current(process) and process.asks:
            self.answer(process, min(process.asks))
        while self.merges:
            self.merge_done(self.merges[0])
        for fragment in sorted(process.news):
            if self.current(process):
                self.receive_news(process, fragment)
        if process.evaluation is not None and self.current(process):
            self.evaluated(process, 2.0, exact=True)

    def wait(self, seconds: float) -> None:
        """Time passes, and timers fire when they are due."""
        end = self.now + seconds
        while self.timers and min(self.timers.values()) <= end:
            first = min(self.timers, key=lambda timer: self.timers[timer])
            self.now = max(self.now, self.timers.pop(first))
            self.do(TimerFired(first))
        self.now = end

    def jump(self, seconds: float) -> None:
        """The clock jumps, as after the machine slept: timers fire late, in any order."""
        self.now += seconds
        for name in sorted(name for name, at in self.timers.items() if at <= self.now):
            if self.timers.get(name, self.now + 1.0) <= self.now:
                del self.timers[name]
                self.do(TimerFired(name))

    def plan(self, learners: tuple[str, ...]) -> None:
        """The manifest plans other learners, and has no pool without one."""
        self.do(LearnersPlanned(learners, tuple(sorted(set(map(pool_of, learners))))))

    def keep(self) -> None:
        """The syncer writes a checkpoint."""
        self.kept = json.loads(json.dumps(self.engine.snapshot(self.now)))
        self._known_earlier, self._known_admitted = self.earlier.copy(), self.admitted.copy()

    def restart(self) -> None:
        """The syncer is killed, and starts again from its newest checkpoint."""
        self.epoch += 1
        self.engine = Engine(self.options, self.epoch, self.kept)
        self.timers.clear()
        self.merges.clear()
        self.earlier, self.admitted = self._known_earlier.copy(), self._known_admitted.copy()
        self.sessions.clear()
        self._open.clear()
        self._made.clear()
        self._valid.clear()
        self.versions = list(self.engine.versions)
        self.finished = self.engine.finished
        for process in self.processes.values():
            self._remember(process)
            process.asks.clear()
            process.news.clear()
            process.evaluation = None
