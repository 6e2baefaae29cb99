"""Whatever happens in whatever order, the engine keeps its invariants and goes on while K learners make steps.

``tests.support.engine_checks`` checks every decision. A longer search: ``ENGINE_STATES=2000 pytest`` (examples of each
set of options).
"""

import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from diloco.core.engine.events import (
    BudgetChanged,
    Evaluated,
    Event,
    FragmentApplied,
    FragmentArrived,
    FragmentDeclined,
    FragmentLate,
    LearnerAlive,
    LearnerLeft,
    LearnerReady,
    LeftOut,
    StepReported,
)
from diloco.core.engine.options import EngineOptions
from tests.support.engine_checks import LONGEST_STEP_SECONDS, TOKENS_PER_STEP, Process, key_of
from tests.support.engine_script import name, options
from tests.support.engine_world import World
from tests.support.examples import examples

EXAMPLES = int(os.environ.get("ENGINE_STATES", "0"))
LEARNERS = 3
NAMES = tuple(name(index) for index in range(LEARNERS + 1))
"""One of them is not planned at first."""

OPTION_SETS: dict[str, dict[str, Any]] = {
    "quorum-1": {},
    "quorum-all": {"quorum": 3},
    "overlap-auto": {"quorum": 2, "overlap": 1, "overlap_limit": 4, "max_version_lag": 2},
    "uneven-fragments": {"quorum": 2, "interval": 8, "shares": (0.55, 0.15, 0.15, 0.15), "token_weights": False},
    "one-fragment": {"fragments": 1, "interval": 3, "overlap": 1, "grace_maximum_seconds": 0.5},
    "ends": {"budget_tokens": 8000, "evaluate_every_tokens": 1000, "max_restarts": 3, "minimum_learners": 1},
}

places = st.integers(0, 2**16)
"""Chooses one of several, whose number is known when the rule runs."""


class EngineStates(RuleBasedStateMachine):
    """Learners, a syncer and time, which do anything in any order."""

    chosen: EngineOptions = options(LEARNERS)

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.chosen)
        for learner in NAMES[:LEARNERS]:
            self.world.join(learner, another=False)
            self.world.load(self.world.processes[learner])

    def _process(self, place: int) -> Process | None:
        """One of the processes that have a session."""
        there = [process for process in self.world.processes.values() if self.world.current(process)]
        return there[place % len(there)] if there else None

    @rule(learner=st.sampled_from(NAMES), another=st.booleans())
    def joins(self, learner: str, another: bool) -> None:
        self.world.join(learner, another=another)

    @precondition(lambda self: self.world.earlier)
    @rule(place=places)
    def superseded_returns(self, place: int) -> None:
        # Only the latest few are remembered.
        latest = self.world.earlier[-8:]
        process = latest[place % len(latest)]
        if process.learner in self.world.processes and process.incarnation:
            self.world.earlier_returns(process)

    @rule(place=places)
    def loads(self, place: int) -> None:
        process = self._process(place)
        if process is not None and (process.load or not process.training):
            self.world.load(process)

    @rule(place=places, count=st.integers(1, 6), seconds=st.sampled_from([0.1, 1.0, LONGEST_STEP_SECONDS]))
    def steps(self, place: int, count: int, seconds: float) -> None:
        process = self._process(place)
        if process is not None:
            self.world.step(process, count, seconds)

    @rule(seconds=st.sampled_from([0.2, 1.0]))
    def all_step(self, seconds: float) -> None:
        for process in list(self.world.processes.values()):
            if self.world.current(process):
                self.world.step(process, 1, seconds)
        self.world.wait(seconds)

    @rule(place=places, which=places)
    def answers(self, place: int, which: int) -> None:
        process = self._process(place)
        if process is not None and process.asks:
            self.world.answer(process, sorted(process.asks)[which % len(process.asks)])

    @precondition(lambda self: self.world.pushed)
    @rule(place=places, ahead=st.integers(-1, 1), more=st.integers(-1, 1))
    def is_repeated(self, place: int, ahead: int, more: int) -> None:
        event = self.world.pushed[-1 - place % min(8, len(self.world.pushed))]
        changed = replace(event, version=event.version + ahead, attempt=event.attempt + more)
        self.world.push(changed)

    @rule(place=places, base=st.integers(-3, 3), steps=st.integers(0, 4))
    def is_measured_from_elsewhere(self, place: int, base: int, steps: int) -> None:
        process = self._process(place)
        if process is None or not process.asks:
            return
        ask = process.asks.pop(min(process.asks))
        process.spoilt = True
        key = key_of(ask)
        digest = f"{len(self.world.pushed):032x}"
        self.world.push(FragmentArrived(*key, ask.version - 1 + base, steps, steps * TOKENS_PER_STEP, 64, digest))

    @precondition(lambda self: self.world.pushed)
    @rule(place=places)
    def is_late(self, place: int) -> None:
        event = self.world.pushed[-1 - place % min(8, len(self.world.pushed))]
        self.world.do(FragmentLate(event.learner, event.incarnation, event.fragment, event.version, event.attempt))

    @precondition(lambda self: self.world.over)
    @rule(place=places, kind=places, fragment=places)
    def fenced_speaks(self, place: int, kind: int, fragment: int) -> None:
        """A message of an incarnation that is over, or is about to be, changes nothing."""
        world = self.world
        process = world.over[-1 - place % min(8, len(world.over))]
        if world.current(process) or not process.incarnation:
            return
        learner, incarnation = process.learner, process.incarnation
        fragment %= len(world.versions)
        steps, before = process.steps + 1, world.engine.snapshot(world.now)
        said: list[Event] = [
            StepReported(learner, incarnation, steps, steps * TOKENS_PER_STEP, 1.0, 2.0, steps),
            FragmentApplied(learner, incarnation, fragment, world.versions[fragment] + 1, steps),
            LearnerAlive(learner, incarnation),
            LearnerReady(learner, incarnation),
            LearnerLeft(learner, incarnation, clean=True),
        ]
        for ask in process.asks.values():
            key = key_of(ask)
            digest = f"{len(world.pushed):032x}"
            said += [FragmentDeclined(*key), FragmentArrived(*key, ask.version - 1, 1, TOKENS_PER_STEP, 64, digest)]
        if process.evaluation is not None:
            said.append(Evaluated(learner, incarnation, process.evaluation.evaluation, 2.0, exact=True))
        world.do(said[kind % len(said)])
        assert world.engine.snapshot(world.now)["learners"] == before["learners"]

    @rule(place=places, clean=st.booleans())
    def leaves(self, place: int, clean: bool) -> None:
        process = self._process(place)
        if process is not None:
            self.world.leave(process, clean=clean)

    @rule(place=places)
    def says_it_lives(self, place: int) -> None:
        process = self._process(place)
        if process is not None:
            self.world.do(LearnerAlive(process.learner, process.incarnation))

    @precondition(lambda self: self.world.merges)
    @rule(place=places, failed=st.booleans(), spoilt=st.booleans())
    def merge_ends(self, place: int, failed: bool, spoilt: bool) -> None:
        """A merge ends; one of its members may have sent values that are not finite."""
        merge = self.world.merges[place % len(self.world.merges)]
        left_out = (LeftOut(merge.members[0].learner, "not finite"),) if spoilt else ()
        self.world.merge_done(merge, failed=failed, left_out=left_out)

    @rule(place=places, which=places)
    def receives(self, place: int, which: int) -> None:
        process = self._process(place)
        if process is not None and process.training and process.news:
            self.world.receive_news(process, sorted(process.news)[which % len(process.news)])

    @rule(place=places, loss=st.sampled_from([2.0, 0.001, float("nan")]), exact=st.booleans())
    def evaluates(self, place: int, loss: float, exact: bool) -> None:
        process = self._process(place)
        if process is not None and process.evaluation is not None:
            self.world.evaluated(process, loss, exact=exact)

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.wait(seconds)

    @rule(seconds=st.sampled_from([15.0, 1000.0, 1e6]))
    def clock_jumps(self, seconds: float) -> None:
        self.world.jump(seconds)

    @rule(learners=st.sets(st.sampled_from(NAMES), min_size=1))
    def plan_changes(self, learners: set[str]) -> None:
        self.world.plan(tuple(sorted(learners)))

    @precondition(lambda self: self.chosen.budget_tokens <= 8000)
    @rule(tokens=st.sampled_from([1000, 8000, 16_000]))
    def budget_changes(self, tokens: int) -> None:
        self.world.do(BudgetChanged(tokens, max(1, tokens // 10)))

    @rule()
    def checkpoint_is_written(self) -> None:
        self.world.keep()

    @rule(newest=st.booleans())
    def syncer_restarts(self, newest: bool) -> None:
        if newest:
            self.world.keep()
        self.world.restart()

    def teardown(self) -> None:
        """From now on K learners, and no other, do as they should: every fragment must get newer versions."""
        world = self.world
        if world.finished or not world.sound:
            return
        world.plan(NAMES[:LEARNERS])
        fair: list[Process] = []
        for learner in NAMES[:LEARNERS]:
            if len(fair) < self.chosen.quorum and not world.finished:
                process = world.processes.get(learner)
                if process is None or not world.current(process) or process.spoilt:
                    world.join(learner, another=False)
                process = world.processes[learner]
                if world.current(process):
                    fair.append(process)
        before = world.versions.copy()
        for _ in range(self._enough()):
            if self.world.finished:
                return
            for process in fair:
                world.fair_turn(process)
            world.wait(1.0)
        grown = [after - early for after, early in zip(world.versions, before, strict=True)]
        assert min(grown) >= 2, f"versions grew by {grown} while {len(fair)} learners made steps"

    def _enough(self) -> int:
        """Seconds, one step each, in which every fragment has several turns, and the silent are given up."""
        silent = self.chosen.lease_seconds + 10 * LONGEST_STEP_SECONDS
        return int(silent) + 6 * (self.chosen.schedule.interval + self.chosen.overlap_limit)


def states_of(kind: str) -> type[EngineStates]:
    """The states of an engine with one set of options."""
    chosen = options(LEARNERS, **dict(OPTION_SETS[kind]))
    return type(f"EngineStates of {kind}", (EngineStates,), {"chosen": chosen})


@pytest.mark.parametrize("kind", OPTION_SETS)
def test_any_interleaving_keeps_the_invariants(kind: str) -> None:
    play = settings(
        max_examples=EXAMPLES or examples(60),
        stateful_step_count=400 if EXAMPLES else 50,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(states_of(kind), settings=play)


def test_an_outer_gradient_before_its_request_is_dropped_and_comes_again() -> None:
    machine = states_of("quorum-all")()
    for seconds in (*[0.2] * 7, 1.0, 0.2):
        machine.all_step(seconds=seconds)
    machine.answers(place=0, which=0)
    for _ in range(7):
        machine.all_step(seconds=0.2)
    machine.is_repeated(place=0, ahead=1, more=0)
    machine.teardown()
