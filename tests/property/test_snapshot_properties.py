"""An engine made from its whole state at any moment decides as the one that it was taken from.

What it keeps besides, so as not to look at every learner on every event, is what a look at every learner gives.
"""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.core.engine.actions import Action
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import Event
from diloco.core.engine.roster import Roster
from tests.support.engine_moves import LEARNERS, Move, moves, play
from tests.support.engine_script import Script, options, started
from tests.support.examples import examples


class Doubled(Script):
    """A script that replaces the engine by one made from its image, and keeps the first for comparison."""

    def __init__(self, quorum: int, every: int) -> None:
        super().__init__(options(LEARNERS, quorum=quorum), begun=False)
        self.first, self.every, self.events = Engine(self.options, 1), every, 0

    def do(self, event: Event) -> list[Action]:
        self.events += 1
        if self.events % self.every == 0:
            image = json.loads(json.dumps(self.engine.image()))
            self.engine = Engine.from_image(self.options, 1, image)
        expected = self.first.step(event, self.now)
        actions = super().do(event)
        assert actions == expected
        assert self.first._state.roster == Roster(self.first._state)
        return actions


@given(moves(), st.integers(1, LEARNERS), st.integers(1, 40))
@settings(max_examples=examples(150))
def test_it_goes_on_as_the_one_that_it_was_taken_from(chosen: list[Move], quorum: int, every: int) -> None:
    script = Doubled(quorum, every)
    script.start(*range(LEARNERS))
    play(script, chosen)
    assert script.engine._state == script.first._state
    assert script.view == script.first.view(script.now)


@given(moves())
@settings(max_examples=examples(50))
def test_a_snapshot_restores_to_the_same_snapshot(chosen: list[Move]) -> None:
    script = started(LEARNERS)
    play(script, chosen)
    saved, restored = (one.engine.snapshot(script.now) for one in (script, script.restarted()))
    assert restored == saved | {name: restored[name] for name in ("phase", "phase_reason")}
