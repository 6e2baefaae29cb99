"""While learners make steps and answer, there is a merge within a bound, whatever the others say.

A longer search: ``LIVENESS=5000 pytest``.
"""

import os
from dataclasses import replace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from diloco.core.engine.actions import Merge
from diloco.core.engine.events import LearnerAlive
from diloco.core.engine.options import EngineOptions
from diloco.spec.names.learner_ids import pool_of
from tests.support.engine_liars import Liar, liars
from tests.support.engine_script import POOL, name, options
from tests.support.engine_world import World
from tests.support.examples import examples

PARTS = 8
"""Of a second, in which liars may do something each time."""
EXAMPLES = int(os.environ.get("LIVENESS", examples(25)))
SHAPES = [
    {"fragments": 4, "interval": 4},
    {"fragments": 4, "interval": 8, "overlap": 1},
    {"fragments": 1, "interval": 8},
]
shapes = st.sampled_from(SHAPES)


class Gaps(World):
    """A world that knows the longest time without a merge."""

    longest = 0.0
    latest = 0.0

    def check_state(self) -> None:
        """Once a turn is enough here."""

    def turn(self, honest: int, liars: list[Liar], number: int) -> None:
        """A second in which honest learners make a step, and all others do what they like but fall silent."""
        for index in range(honest):
            self.fair_turn(self.processes[name(index)])
        for part in range(PARTS):
            for index in range(honest):
                self.respond(self.processes[name(index)])
            for index, liar in enumerate(liars):
                if part % (PARTS * liar.every_seconds) == 0:
                    liar.turn(self, alone(index), round((number + part / PARTS) / liar.every_seconds))
            while self.merges:
                self.merge_done(self.merges[0])
            self.wait(1.0 / PARTS)
        for process in self.processes.values():
            if self.current(process):
                self.do(LearnerAlive(process.learner, process.incarnation))
        super().check_state()

    def _ordered(self, action: Merge) -> None:
        super()._ordered(action)
        self.longest, self.latest = max(self.longest, self.now - self.latest), self.now


def alone(index: int) -> str:
    """A learner that is alone in its pool may be many times as fast as the others."""
    return f"there/pool{index}/0"


def chosen(honest: int, liars: list[Liar], **changes: Any) -> EngineOptions:
    others = tuple(map(alone, range(len(liars))))
    learners = (*map(name, range(honest)), *others)
    return replace(options(honest, **changes), learners=learners, pools=(POOL, *map(pool_of, others)))


def play(honest: int, liars: list[Liar], turns: int, job: EngineOptions) -> Gaps:
    world = Gaps(job)
    world.latest = world.now
    for learner in job.learners:
        world.join(learner, another=False)
    for number in range(turns):
        world.turn(honest, liars, number)
    world.longest = max(world.longest, world.now - world.latest)
    return world


def bound_seconds(job: EngineOptions) -> float:
    """Learners reach their staleness bound, a lease later a round is launched for them, and it waits a lease."""
    return job.max_staleness_steps + 2 * job.lease_seconds


@given(st.integers(1, 3), st.lists(liars(), min_size=1, max_size=2), shapes, st.data())
@example(3, [Liar(acts=(("report", "odd", "apply"),), every_seconds=0.125, steps=3)], SHAPES[1], None)
@settings(max_examples=EXAMPLES)
def test_a_quorum_that_makes_steps_merges_on(
    honest: int, others: list[Liar], shape: dict[str, Any], data: st.DataObject | None
) -> None:
    quorum = data.draw(st.integers(1, honest)) if data else 1
    job = chosen(honest, others, quorum=quorum, **shape)
    world = play(honest, others, 120, job)
    assert world.longest <= bound_seconds(job)
    assert world.engine.view(world.now).quorum == quorum


@given(st.integers(1, 2), st.lists(liars(), min_size=1, max_size=2), shapes)
@example(2, [Liar(acts=(("report",),))], SHAPES[0])
@example(2, [Liar(acts=(("report", "ahead", "decline"),))], SHAPES[0])
@example(2, [Liar(acts=(("report", "replace"),))], SHAPES[0])
@example(2, [Liar(acts=(("replace",),), loads=False)], SHAPES[0])
@settings(max_examples=EXAMPLES)
def test_of_a_quorum_of_all_those_that_answer_merge_on(honest: int, others: list[Liar], shape: dict[str, Any]) -> None:
    job = chosen(honest, others, quorum=honest + len(others), **shape)
    world = play(honest, others, 300, job)
    assert world.longest <= bound_seconds(job) + 3 * job.startup_seconds
    assert world.engine.view(world.now).quorum >= honest
