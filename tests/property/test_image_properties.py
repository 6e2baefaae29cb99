"""An engine made from an image at any moment decides as the one that it was taken from."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.core.actions import Action
from diloco.core.engine import Engine
from diloco.core.events import Event
from tests.property.test_engine_properties import LEARNERS, MOVES, play
from tests.support.engine_script import Script, options


class Doubled(Script):
    """A script that replaces the engine by one made from its image, and keeps the first for comparison."""

    def __init__(self, quorum: int, every: int) -> None:
        super().__init__(options(LEARNERS, quorum=quorum))
        self.first, self.every, self.events = Engine(self.options, 1), every, 0

    def do(self, event: Event) -> list[Action]:
        self.events += 1
        if self.events % self.every == 0:
            image = json.loads(json.dumps(self.engine.image()))
            self.engine = Engine.from_image(self.options, 1, image)
        expected = self.first.step(event, self.now)
        actions = super().do(event)
        assert actions == expected
        return actions


@given(MOVES, st.integers(1, LEARNERS), st.integers(1, 40))
@settings(max_examples=150)
def test_it_goes_on_as_the_one_that_it_was_taken_from(
    moves: list[tuple[str, int, int]], quorum: int, every: int
) -> None:
    script = Doubled(quorum, every)
    script.start(*range(LEARNERS))
    play(script, moves)
    assert script.engine._state == script.first._state
    assert script.engine.view(script.now) == script.first.view(script.now)
