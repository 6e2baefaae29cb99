"""What the engine keeps so as not to look at every learner on every event is what a look at every learner gives."""

from itertools import count

import pytest

from diloco.core.engine.actions import Action, AskFragment
from diloco.core.engine.engine import Engine
from diloco.core.engine.events import Event
from diloco.core.engine.roster import Roster
from diloco.core.engine.rounds import requests
from diloco.simulate import Cut, Kill, Link, Profile, Scenario, syncer
from diloco.simulate.training.counted import layout_of_sizes
from diloco.simulate.world import simulate_course
from tests.support.small_job import named_job, small_job

FRAGMENTS = 6


@pytest.mark.parametrize("quorum", [1, 4])
def test_far_learners_that_come_and_go_are_asked_as_if_all_were_looked_at(
    quorum: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead: list[AskFragment] = []
    number = count(1)

    class Checked(Engine):
        def step(self, event: Event, now: float) -> list[Action]:
            actions = super().step(event, now)
            ahead.extend(one for one in actions if isinstance(one, AskFragment) and "step(s) before" in one.reason)
            assert self._state.roster == Roster(self._state)
            if next(number) % 10 == 0:
                again = Engine.from_image(self._state.options, self._state.epoch, self.image())
                assert requests.ask_ahead(again._state, None, now) == []
            return actions

    monkeypatch.setattr(syncer, "Engine", Checked)
    training = {"tokens": 10**9, "sequenceLength": 16, "batchSize": 4, "evaluation": {"sequences": 2}}
    sync = {"fragments": FRAGMENTS, "interval": 12, "quorum": quorum}
    job = named_job("far", small_job(learners=6, training=training, sync=sync))
    ids = job.spec.learner_ids
    far = {name: Profile(link=Link(0.4 + 0.3 * index, 1e5)) for index, name in enumerate(ids[:3])}
    faults = (Kill(ids[0], 21.0), Cut(ids[1], 30.0, 3.0), Kill(ids[4], 36.0), Cut(ids[5], 44.0, 15.0))
    simulate_course(job, Scenario(far, faults=faults), layout_of_sizes([10_000] * FRAGMENTS), 75.0)
    assert len(ahead) > 20
